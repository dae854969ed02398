/* The CUDA driver's functions, answered by the interpreter: what a host program calls in libcuda.so.1.
   This file has devices, contexts and errors; driver_memory.c and driver_kernels.c the rest, with what the
   runtime has as well (library.h). Names, layouts and numbers are those of cuda.h of CUDA 13; a name with a suffix, such as cuMemAlloc_v2, is what that header makes of
   cuMemAlloc. */
#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIGURATION = 9, SYMBOL = 13, FUNCTION = 98 }; /* of the runtime: cudaError_t has them, CUresult has not */
enum { DEPTH = 16 };

static int initialized;
static Context primary = {.primary = 1, .number = 1};
static unsigned retained; /* how often the primary context is */
static uint64_t contexts_made = 1;
static uint64_t calls;
static __thread Context *contexts[DEPTH];
static __thread int depth;

/* ------------------------------------------------------------------------------- status and contexts */

uint64_t tick(void) { return __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED); }

Result done(int status) {
    tick();
    if (status == CONFIGURATION) return INVALID_VALUE;
    return status == SYMBOL || status == FUNCTION ? NOT_FOUND : status;
}

Context *current(void) { return depth ? contexts[depth - 1] : NULL; }

Result unready(void) {
    if (!initialized) return done(NOT_INITIALIZED);
    return current() ? OK : done(INVALID_CONTEXT);
}
#define STARTED() do { if (!initialized) return done(NOT_INITIALIZED); } while (0)

Result cuInit(unsigned flags) { return flags ? done(INVALID_VALUE) : (initialized = 1, done(OK)); }
Result cuDriverGetVersion(int *version) { return version ? (*version = VERSION, done(OK)) : done(INVALID_VALUE); }

Result cuDeviceGetCount(int *count) { STARTED(); *count = 1; return done(OK); }
Result cuDeviceGet(int *device, int ordinal) {
    STARTED();
    if (ordinal) return done(INVALID_DEVICE);
    *device = DEVICE;
    return done(OK);
}

Result cuDeviceGetAttribute(int *value, int attribute, int device) {
    STARTED();
    if (device != DEVICE) return done(INVALID_DEVICE);
    *value = attribute_of(attribute);
    return done(OK);
}

Result cuDeviceComputeCapability(int *major, int *minor, int device) {
    Result status = cuDeviceGetAttribute(major, 75, device);
    return status ? status : cuDeviceGetAttribute(minor, 76, device);
}

Result cuDeviceGetName(char *name, int room, int device) {
    char *found = NULL;
    STARTED();
    if (device != DEVICE) return done(INVALID_DEVICE);
    if (!name || room < 1) return done(INVALID_VALUE);
    wire_call("device_name", NULL, 0, NULL, 0, NULL, &found, 0);
    snprintf(name, (size_t)room, "%s", found);
    free(found);
    return done(OK);
}

Result cuDeviceGetUuid_v2(char *uuid, int device) {
    STARTED();
    if (device != DEVICE) return done(INVALID_DEVICE);
    device_uuid(uuid);
    return done(OK);
}
Result cuDeviceGetLuid(char *luid, unsigned *mask, int device) { (void)luid, (void)mask, (void)device; STARTED(); return done(NOT_SUPPORTED); } /* of Windows alone */
Result cuDeviceGetExecAffinitySupport(int *can, int kind, int device) { (void)kind, (void)device; STARTED(); *can = 0; return done(OK); }

Result cuDeviceTotalMem_v2(size_t *nbytes, int device) {
    uint64_t back[WIRE_WORDS];
    STARTED();
    if (device != DEVICE) return done(INVALID_DEVICE);
    ask("memory_info", 0, 0, 0, 0, back);
    *nbytes = back[1];
    return done(OK);
}

Result cuDevicePrimaryCtxRetain(Context **context, int device) {
    STARTED();
    if (device != DEVICE) return done(INVALID_DEVICE);
    __atomic_add_fetch(&retained, 1, __ATOMIC_RELAXED);
    *context = &primary;
    return done(OK);
}

Result cuDevicePrimaryCtxRelease_v2(int device) {
    STARTED();
    if (device != DEVICE) return done(INVALID_DEVICE);
    if (!__atomic_load_n(&retained, __ATOMIC_RELAXED)) return done(INVALID_CONTEXT);
    __atomic_sub_fetch(&retained, 1, __ATOMIC_RELAXED);
    return done(OK);
}

Result cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) { STARTED(); primary.flags = flags; return done(device ? INVALID_DEVICE : OK); }
Result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    STARTED();
    if (device != DEVICE) return done(INVALID_DEVICE);
    *flags = primary.flags, *active = retained > 0;
    return done(OK);
}
Result cuDevicePrimaryCtxReset_v2(int device) { STARTED(); return done(device ? INVALID_DEVICE : ask("reset", 0, 0, 0, 0, NULL)); }

Result cuCtxGetCurrent(Context **context) { STARTED(); *context = current(); return done(OK); }
Result cuCtxSetCurrent(Context *context) {
    STARTED();
    if (!context) depth -= depth > 0;
    else if (depth) contexts[depth - 1] = context;
    else contexts[depth++] = context;
    return done(OK);
}
Result cuCtxPushCurrent_v2(Context *context) {
    STARTED();
    if (!context || depth == DEPTH) return done(INVALID_CONTEXT);
    contexts[depth++] = context;
    return done(OK);
}
Result cuCtxPopCurrent_v2(Context **context) {
    READY();
    if (context) *context = current();
    depth--;
    return done(OK);
}
Result cuCtxCreate_v2(Context **context, unsigned flags, int device) {
    STARTED();
    if (device != DEVICE) return done(INVALID_DEVICE);
    *context = calloc(1, sizeof **context);
    **context = (Context){.flags = flags, .number = __atomic_add_fetch(&contexts_made, 1, __ATOMIC_RELAXED)};
    return cuCtxPushCurrent_v2(*context);
}
Result cuCtxCreate_v3(Context **context, const void *parameters, int count, unsigned flags, int device) {
    (void)parameters;
    if (count) wire_unanswered("cuCtxCreate with parameters of affinity");
    return cuCtxCreate_v2(context, flags, device);
}
Result cuCtxCreate_v4(Context **context, const void *parameters, unsigned flags, int device) {
    if (parameters) wire_unanswered("cuCtxCreate with parameters of affinity or of a green context");
    return cuCtxCreate_v2(context, flags, device);
}
Result cuCtxDestroy_v2(Context *context) {
    STARTED();
    if (!context || context->primary) return done(INVALID_CONTEXT);
    if (current() == context) depth--;
    free(context);
    return done(OK);
}
Result cuCtxGetDevice(int *device) { READY(); *device = DEVICE; return done(OK); }
Result cuCtxGetDevice_v2(int *device, Context *context) { STARTED(); if (!context) return cuCtxGetDevice(device); *device = DEVICE; return done(OK); }
Result cuCtxGetId(Context *context, unsigned long long *number) { STARTED(); if (!context && !(context = current())) return done(INVALID_CONTEXT); *number = context->number; return done(OK); }
Result cuCtxSetFlags(unsigned flags) { READY(); current()->flags = flags; return done(OK); }
Result cuCtxGetFlags(unsigned *flags) { READY(); *flags = current()->flags; return done(OK); }
Result cuCtxGetApiVersion(Context *context, unsigned *version) { (void)context; *version = VERSION; return done(OK); }
Result cuCtxSetCacheConfig(int config) { (void)config; READY(); return done(OK); }
Result cuCtxGetCacheConfig(int *config) { READY(); *config = 0; return done(OK); } /* no preference */
Result cuCtxGetSharedMemConfig(int *config) { READY(); *config = 1; return done(OK); } /* banks of 4 bytes, as all these devices have */
Result cuCtxSetSharedMemConfig(int config) { (void)config; READY(); return done(OK); }
Result cuCtxSynchronize(void) { READY(); return done(ask("sync", 0, 0, 0, 0, NULL)); }
Result cuCtxSynchronize_v2(Context *context) { STARTED(); return context || current() ? done(ask("sync", 0, 0, 0, 0, NULL)) : done(INVALID_CONTEXT); }

/* All contexts have one memory and one device, so that a stream is of whichever is current. */
Result cuStreamGetCtx(void *stream, Context **context) { (void)stream; READY(); *context = current(); return done(OK); }
Result cuStreamGetCtx_v2(void *stream, Context **context, void **green) { if (green) *green = NULL; return cuStreamGetCtx(stream, context); }

/* -------------------------------------------------------------------------------- errors and symbols */

static const struct { int code; const char *name; } names[] = {
#define ERROR(code, name) {code, name},
#include "driver_errors.inc"
#undef ERROR
};
static const struct { int code; const char *text; } texts[] = {
#define ERROR(code, name, text) {code, text},
#include "errors.inc"
#undef ERROR
};

Result cuGetErrorName(Result code, const char **name) {
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        if (names[n].code == code) { *name = names[n].name; return OK; }
    *name = NULL;
    return INVALID_VALUE;
}

Result cuGetErrorString(Result code, const char **text) {
    Result known = cuGetErrorName(code, text);
    for (size_t n = 0; !known && n < sizeof texts / sizeof *texts; n++)
        if (texts[n].code == code) *text = texts[n].text;
    return known;
}

/* Tables of functions for NVIDIA's own libraries, which are not documented. The compilers, such as libnvrtc and
   libnvJitLink, do without; a CUDA runtime that is linked into a program or into a library does not. */
Result cuGetExportTable(const void **table, const void *uuid) {
    Dl_info by = {0};
    char text[512];
    (void)uuid;
    dladdr(__builtin_return_address(0), &by);
    const char *file = by.dli_fname ? by.dli_fname : "the program", *name = strrchr(file, '/');
    if (table) *table = NULL;
    if (!strncmp(name ? name + 1 : file, "libnv", 5)) return done(NOT_FOUND);
    snprintf(text, sizeof text, "%s asks the driver for a table that NVIDIA does not document (cuGetExportTable), as the CUDA runtime does when it "
             "is linked into a program or a library; one that loads libcudart.so.13 runs here (nvcc -cudart shared)", file);
    wire_refused(text);
    return NOT_FOUND;
}

/* The function that a program for a version of CUDA calls by a name without a suffix. That for the default
   stream of a thread is the same. */
Result cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *why) {
    enum { SUCCESS = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2, LEGACY = 1, PER_THREAD = 2 };
    if (!symbol || !function || version > VERSION || flags & ~(uint64_t)(LEGACY | PER_THREAD)) return done(INVALID_VALUE);
    int found = SYMBOL_NOT_FOUND;
    *function = NULL;
    for (const WireVersion *row = wire_versions; row->name; row++) {
        if (strcmp(row->name, symbol)) continue;
        if (row->since <= version) *function = (void *)row->function; /* the newest comes last */
        found = *function ? SUCCESS : VERSION_NOT_SUFFICIENT;
    }
    if (why) *why = found;
    return done(*function ? OK : NOT_FOUND);
}
Result cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) { return cuGetProcAddress_v2(symbol, function, version, flags, NULL); }
