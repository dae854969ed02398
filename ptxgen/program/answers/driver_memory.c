/* The driver's memory. */
#include "driver.h"
#include <string.h>

enum { PITCH = 512 };
enum { HOST_TYPE = 1, DEVICE_TYPE = 2, ARRAY_TYPE = 3 }; /* CUmemorytype */

/* One side of a CUDA_MEMCPY2D, and of a CUDA_MEMCPY3D. */
typedef struct { size_t x, y; int type; char *host; Address device; void *array; size_t pitch; } Side2D;
typedef struct { size_t x, y, z, level; int type; char *host; Address device; void *array, *room; size_t pitch, height; } Side3D;
typedef struct { Side2D from, to; size_t width, height; } Copy2D;
typedef struct { Side3D from, to; size_t width, height, depth; } Copy3D;

Result cuMemAlloc_v2(Address *address, size_t nbytes) { READY(); return done(address && nbytes ? allocate(address, nbytes) : INVALID_VALUE); }

Result cuMemAllocPitch_v2(Address *address, size_t *pitch, size_t width, size_t height, unsigned element) {
    (void)element;
    *pitch = (width + PITCH - 1) / PITCH * PITCH;
    return cuMemAlloc_v2(address, *pitch * height);
}

Result cuMemAllocManaged(Address *address, size_t nbytes, unsigned flags) { (void)flags; READY(); return done(map_memory(address, nbytes, MANAGED)); }
Result cuMemAllocHost_v2(void **pointer, size_t nbytes) { READY(); return done(map_memory((Address *)pointer, nbytes, PINNED)); }
Result cuMemHostAlloc(void **pointer, size_t nbytes, unsigned flags) { (void)flags; return cuMemAllocHost_v2(pointer, nbytes); }
Result cuMemHostGetDevicePointer_v2(Address *address, void *pointer, unsigned flags) {
    (void)flags;
    READY();
    if (!on_device(pointer)) return done(INVALID_VALUE);
    *address = (Address)pointer;
    return done(OK);
}
Result cuMemHostGetFlags(unsigned *flags, void *pointer) {
    Address start;
    size_t nbytes;
    READY();
    if (kind_of(pointer, &start, &nbytes) != PINNED) return done(INVALID_VALUE);
    *flags = 2; /* CU_MEMHOSTALLOC_DEVICEMAP: with unified addresses all such memory is */
    return done(OK);
}
/* The memory of the program itself has no addresses that kernels know. */
Result cuMemHostRegister_v2(void *pointer, size_t nbytes, unsigned flags) { (void)pointer, (void)nbytes, (void)flags; READY(); return done(NOT_SUPPORTED); }
Result cuMemHostUnregister(void *pointer) { (void)pointer; READY(); return done(NOT_SUPPORTED); }

Result cuMemFree_v2(Address address) { READY(); return done(address ? release(address) : OK); }
Result cuMemFreeHost(void *pointer) { return cuMemFree_v2((Address)pointer); }
Result cuMemAllocAsync(Address *address, size_t nbytes, void *stream) { (void)stream; return cuMemAlloc_v2(address, nbytes); }
Result cuMemAllocFromPoolAsync(Address *address, size_t nbytes, void *pool, void *stream) { (void)stream; return pool ? cuMemAlloc_v2(address, nbytes) : done(INVALID_VALUE); }
Result cuMemFreeAsync(Address address, void *stream) { (void)stream; return cuMemFree_v2(address); }

Result cuMemGetInfo_v2(size_t *left, size_t *total) {
    uint64_t back[WIRE_WORDS];
    READY();
    int status = ask("memory_info", 0, 0, 0, 0, back);
    if (!status) *left = back[0], *total = back[1];
    return done(status);
}

Result cuMemGetAddressRange_v2(Address *start, size_t *nbytes, Address address) {
    Address base;
    size_t length;
    READY();
    if (!kind_of((void *)address, &base, &length)) return done(NOT_FOUND);
    if (start) *start = base;
    if (nbytes) *nbytes = length;
    return done(OK);
}

/* Whether memory has an attribute; writes it. */
static int pointer_attribute(void *out, int attribute, Address address) {
    Address start = 0;
    size_t nbytes = 0;
    int kind = kind_of((void *)address, &start, &nbytes);
    switch (attribute) { /* CU_POINTER_ATTRIBUTE_… */
    case 1: *(Context **)out = kind ? current() : NULL; return kind;
    case 2: *(unsigned *)out = kind == NO_MEMORY ? 0 : kind == PINNED ? HOST_TYPE : DEVICE_TYPE; return kind;
    case 3: *(Address *)out = kind ? address : 0; return kind;
    case 4: *(Address *)out = kind == PINNED || kind == MANAGED ? address : 0; return kind == PINNED || kind == MANAGED;
    case 6: *(unsigned *)out = 1; return kind;
    case 7: *(Address *)out = start; return kind; /* addresses are not used again */
    case 8: *(unsigned char *)out = kind == MANAGED; return kind;
    case 9: *(int *)out = kind ? DEVICE : -2; return kind;
    case 10: *(unsigned char *)out = 0; return kind; /* other processes have no access */
    case 11: *(Address *)out = start; return kind;
    case 12: *(size_t *)out = nbytes; return kind;
    case 13: *(unsigned char *)out = kind != NO_MEMORY; return 1;
    default: wire_unanswered("cuPointerGetAttribute for an attribute other than 1 to 4 and 6 to 13"); return 0;
    }
}
Result cuPointerGetAttribute(void *out, int attribute, Address address) { READY(); return done(out && pointer_attribute(out, attribute, address) ? OK : INVALID_VALUE); }
Result cuPointerGetAttributes(unsigned count, const int *attributes, void **out, Address address) {
    READY();
    for (unsigned n = 0; n < count; n++) pointer_attribute(out[n], attributes[n], address); /* those of no memory are 0 */
    return done(OK);
}
Result cuPointerSetAttribute(const void *value, int attribute, Address address) { (void)value, (void)address; READY(); return done(attribute == 6 ? OK : INVALID_VALUE); } /* SYNC_MEMOPS: always so */

Result cuMemcpyHtoD_v2(Address to, const void *from, size_t nbytes) { READY(); return done(copy((void *)to, from, nbytes, TO_DEVICE)); }
Result cuMemcpyDtoH_v2(void *to, Address from, size_t nbytes) { READY(); return done(copy(to, (void *)from, nbytes, TO_HOST)); }
Result cuMemcpyDtoD_v2(Address to, Address from, size_t nbytes) { READY(); return done(copy((void *)to, (void *)from, nbytes, DEVICE_TO_DEVICE)); }
Result cuMemcpy(Address to, Address from, size_t nbytes) { READY(); return done(copy((void *)to, (void *)from, nbytes, BY_ADDRESS)); }
Result cuMemcpyPeer(Address to, void *to_context, Address from, void *from_context, size_t nbytes) { (void)to_context, (void)from_context; return cuMemcpy(to, from, nbytes); }
Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t nbytes, void *stream) { (void)stream; return cuMemcpyHtoD_v2(to, from, nbytes); }
Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t nbytes, void *stream) { (void)stream; return cuMemcpyDtoH_v2(to, from, nbytes); }
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t nbytes, void *stream) { (void)stream; return cuMemcpyDtoD_v2(to, from, nbytes); }
Result cuMemcpyAsync(Address to, Address from, size_t nbytes, void *stream) { (void)stream; return cuMemcpy(to, from, nbytes); }
Result cuMemcpyPeerAsync(Address to, void *to_context, Address from, void *from_context, size_t nbytes, void *stream) { (void)stream; return cuMemcpyPeer(to, to_context, from, from_context, nbytes); }

static char *start_of(int type, char *host, Address device, size_t offset) {
    if (type == ARRAY_TYPE) wire_unanswered("a copy from or to an array");
    return (type == HOST_TYPE ? host : (char *)device) + offset;
}

Result cuMemcpy3D_v2(const Copy3D *c) {
    READY();
    char *to = start_of(c->to.type, c->to.host, c->to.device, (c->to.z * c->to.height + c->to.y) * c->to.pitch + c->to.x);
    char *from = start_of(c->from.type, c->from.host, c->from.device, (c->from.z * c->from.height + c->from.y) * c->from.pitch + c->from.x);
    return done(copy_box(to, c->to.pitch, c->to.height, from, c->from.pitch, c->from.height, c->width, c->height, c->depth, BY_ADDRESS));
}
Result cuMemcpy2D_v2(const Copy2D *c) {
    READY();
    char *to = start_of(c->to.type, c->to.host, c->to.device, c->to.y * c->to.pitch + c->to.x);
    char *from = start_of(c->from.type, c->from.host, c->from.device, c->from.y * c->from.pitch + c->from.x);
    return done(copy_box(to, c->to.pitch, c->height, from, c->from.pitch, c->height, c->width, c->height, 1, BY_ADDRESS));
}
Result cuMemcpy2DUnaligned_v2(const Copy2D *parameters) { return cuMemcpy2D_v2(parameters); }
Result cuMemcpy2DAsync_v2(const Copy2D *parameters, void *stream) { (void)stream; return cuMemcpy2D_v2(parameters); }
Result cuMemcpy3DAsync_v2(const Copy3D *parameters, void *stream) { (void)stream; return cuMemcpy3D_v2(parameters); }

/* `count` elements of `width` bytes in each row. */
static Result set(Address address, size_t pitch, unsigned value, size_t count, size_t rows, unsigned width) { READY(); return done(fill_rows(address, pitch, value, count, rows, width)); }
Result cuMemsetD8_v2(Address address, unsigned char value, size_t count) { return set(address, 0, value, count, 1, 1); }
Result cuMemsetD16_v2(Address address, unsigned short value, size_t count) { return set(address, 0, value, count, 1, 2); }
Result cuMemsetD32_v2(Address address, unsigned value, size_t count) { return set(address, 0, value, count, 1, 4); }
Result cuMemsetD8Async(Address address, unsigned char value, size_t count, void *stream) { (void)stream; return set(address, 0, value, count, 1, 1); }
Result cuMemsetD16Async(Address address, unsigned short value, size_t count, void *stream) { (void)stream; return set(address, 0, value, count, 1, 2); }
Result cuMemsetD32Async(Address address, unsigned value, size_t count, void *stream) { (void)stream; return set(address, 0, value, count, 1, 4); }
Result cuMemsetD2D8_v2(Address address, size_t pitch, unsigned char value, size_t width, size_t rows) { return set(address, pitch, value, width, rows, 1); }
Result cuMemsetD2D16_v2(Address address, size_t pitch, unsigned short value, size_t width, size_t rows) { return set(address, pitch, value, width, rows, 2); }
Result cuMemsetD2D32_v2(Address address, size_t pitch, unsigned value, size_t width, size_t rows) { return set(address, pitch, value, width, rows, 4); }
Result cuMemsetD2D8Async(Address address, size_t pitch, unsigned char value, size_t width, size_t rows, void *stream) { (void)stream; return set(address, pitch, value, width, rows, 1); }
Result cuMemsetD2D16Async(Address address, size_t pitch, unsigned short value, size_t width, size_t rows, void *stream) { (void)stream; return set(address, pitch, value, width, rows, 2); }
Result cuMemsetD2D32Async(Address address, size_t pitch, unsigned value, size_t width, size_t rows, void *stream) { (void)stream; return set(address, pitch, value, width, rows, 4); }

Result cuMemAdvise(void) { READY(); return done(OK); }           /* a hint */
Result cuMemAdvise_v2(void) { READY(); return done(OK); }        /* a hint */
Result cuMemPrefetchAsync(void) { READY(); return done(OK); }    /* a hint */
Result cuMemPrefetchAsync_v2(void) { READY(); return done(OK); } /* a hint */
