/* The runtime's memory. */
#include "runtime.h"
#include <stdlib.h>
#include <string.h>

enum { PITCH = 512 };
enum { DEVICE_NONE = -2 }; /* cudaInvalidDeviceId */

typedef struct { void *pointer; size_t pitch, width, height; } Pitched;
typedef struct { size_t width, height, depth; } Extent;
typedef struct { size_t x, y, z; } Position;
typedef struct { void *from_array; Position from_at; Pitched from; void *to_array; Position to_at; Pitched to; Extent extent; int kind; } Copy3D;
typedef struct { int kind, device; void *on_device, *on_host; long room[8]; } PointerAttributes;

int cudaMalloc(void **pointer, size_t nbytes) { return done(pointer ? allocate((Address *)pointer, nbytes) : INVALID_VALUE); }
int cudaMallocManaged(void **pointer, size_t nbytes, unsigned flags) { (void)flags; return done(map_memory((Address *)pointer, nbytes, MANAGED)); }
int cudaMallocHost(void **pointer, size_t nbytes) { return done(map_memory((Address *)pointer, nbytes, PINNED)); }
int cudaHostAlloc(void **pointer, size_t nbytes, unsigned flags) { (void)flags; return cudaMallocHost(pointer, nbytes); }

/* The memory of the program itself has no addresses that kernels know. */
int cudaHostRegister(void *pointer, size_t nbytes, unsigned flags) { (void)pointer, (void)nbytes, (void)flags; return done(NOT_SUPPORTED); }
int cudaHostUnregister(void *pointer) { (void)pointer; return done(NOT_SUPPORTED); }

int cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
    (void)flags;
    if (!on_device(host)) return done(INVALID_VALUE);
    *device = host;
    return done(OK);
}
int cudaHostGetFlags(unsigned *flags, void *host) {
    Address start;
    size_t nbytes;
    if (kind_of(host, &start, &nbytes) != PINNED) return done(INVALID_VALUE);
    *flags = 2; /* cudaHostAllocMapped: with unified addresses all such memory is */
    return done(OK);
}

int cudaFree(void *pointer) { return done(pointer ? release((Address)pointer) : ask("sync", 0, 0, 0, 0, NULL)); }
int cudaFreeHost(void *pointer) { return cudaFree(pointer); }
int cudaMallocAsync(void **pointer, size_t nbytes, void *stream) { (void)stream; return cudaMalloc(pointer, nbytes); }
int cudaMallocFromPoolAsync(void **pointer, size_t nbytes, void *pool, void *stream) { (void)stream; return pool ? cudaMalloc(pointer, nbytes) : done(INVALID_VALUE); }
int cudaFreeAsync(void *pointer, void *stream) { (void)stream; return cudaFree(pointer); }

int cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
    *pitch = (width + PITCH - 1) / PITCH * PITCH;
    return cudaMalloc(pointer, *pitch * height);
}
int cudaMalloc3D(Pitched *out, Extent extent) {
    *out = (Pitched){.width = extent.width, .height = extent.height};
    return cudaMallocPitch(&out->pointer, &out->pitch, extent.width, extent.height * extent.depth);
}

int cudaMemGetInfo(size_t *left, size_t *total) {
    uint64_t back[WIRE_WORDS];
    int status = ask("memory_info", 0, 0, 0, 0, back);
    if (!status) { *left = back[0]; *total = back[1]; }
    return done(status);
}

int cudaPointerGetAttributes(PointerAttributes *out, const void *pointer) {
    Address start;
    size_t nbytes;
    int kind = kind_of(pointer, &start, &nbytes);
    *out = (PointerAttributes){kind, kind ? DEVICE : DEVICE_NONE, kind ? (void *)pointer : NULL, kind == ON_DEVICE ? NULL : (void *)pointer, {0}};
    return done(OK);
}

int cudaMemcpy(void *to, const void *from, size_t nbytes, int kind) { return done(copy(to, from, nbytes, kind)); }
int cudaMemcpyAsync(void *to, const void *from, size_t nbytes, int kind, void *stream) { (void)stream; return cudaMemcpy(to, from, nbytes, kind); }
int cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t nbytes) { return to_device || from_device ? done(INVALID_DEVICE) : cudaMemcpy(to, from, nbytes, BY_ADDRESS); }
int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t nbytes, void *stream) { (void)stream; return cudaMemcpyPeer(to, to_device, from, from_device, nbytes); }
int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows, int kind) { return done(copy_box(to, to_pitch, rows, from, from_pitch, rows, width, rows, 1, kind)); }
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows, int kind, void *stream) { (void)stream; return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, rows, kind); }
int cudaMemcpy3D(const Copy3D *c) {
    if (c->from_array || c->to_array) wire_unanswered("cudaMemcpy3D for an array");
    char *to = (char *)c->to.pointer + (c->to_at.z * c->to.height + c->to_at.y) * c->to.pitch + c->to_at.x;
    const char *from = (const char *)c->from.pointer + (c->from_at.z * c->from.height + c->from_at.y) * c->from.pitch + c->from_at.x;
    return done(copy_box(to, c->to.pitch, c->to.height, from, c->from.pitch, c->from.height, c->extent.width, c->extent.height, c->extent.depth, c->kind));
}
int cudaMemcpy3DAsync(const Copy3D *parameters, void *stream) { (void)stream; return cudaMemcpy3D(parameters); }

int cudaMemset(void *pointer, int value, size_t nbytes) { return done(fill_rows((Address)pointer, 0, (uint8_t)value, nbytes, 1, 1)); }
int cudaMemsetAsync(void *pointer, int value, size_t nbytes, void *stream) { (void)stream; return cudaMemset(pointer, value, nbytes); }
int cudaMemset2D(void *pointer, size_t pitch, int value, size_t width, size_t rows) { return done(fill_rows((Address)pointer, pitch, (uint8_t)value, width, rows, 1)); }
int cudaMemset2DAsync(void *pointer, size_t pitch, int value, size_t width, size_t rows, void *stream) { (void)stream; return cudaMemset2D(pointer, pitch, value, width, rows); }
int cudaMemset3D(Pitched box, int value, Extent extent) {
    for (size_t slice = 0; slice < extent.depth; slice++) {
        int status = cudaMemset2D((char *)box.pointer + slice * box.height * box.pitch, box.pitch, value, extent.width, extent.height);
        if (status) return status;
    }
    return done(OK);
}
int cudaMemset3DAsync(Pitched box, int value, Extent extent, void *stream) { (void)stream; return cudaMemset3D(box, value, extent); }
int cudaMemPrefetchAsync(void) { return done(OK); } /* a hint */
int cudaMemAdvise(void) { return done(OK); }        /* a hint */

/* A description, which says nothing of the device. */
typedef struct { int bits[4], kind; } Channels;
Channels cudaCreateChannelDesc(int x, int y, int z, int w, int kind) { return (Channels){{x, y, z, w}, kind}; }
