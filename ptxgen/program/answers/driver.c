/* The CUDA driver's functions, answered by the interpreter: what a host program calls in libcuda.so.1.
   This file has devices, contexts, memory and errors; driver_kernels.c the rest. Names, layouts and numbers
   are those of cuda.h of CUDA 13; a name with a suffix, such as cuMemAlloc_v2, is what that header makes of
   cuMemAlloc. */
#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct Mapped { Address start; size_t nbytes; struct Mapped *next; } Mapped;

enum { CONFIGURATION = 9, SYMBOL = 13, FUNCTION = 98 }; /* of the runtime: cudaError_t has them, CUresult has not */
enum { DEPTH = 16, DEVICE = 0 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialized;
static Context primary = {.primary = 1};
static unsigned retained; /* how often the primary context is */
static Mapped *mapped;
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

static Context *current(void) { return depth ? contexts[depth - 1] : NULL; }

Result unready(void) {
    if (!initialized) return done(NOT_INITIALIZED);
    return current() ? OK : done(INVALID_CONTEXT);
}
#define STARTED() do { if (!initialized) return done(NOT_INITIALIZED); } while (0)

int ask(const char *name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t *back) {
    uint64_t numbers[] = {a, b, c, d};
    return wire_call(name, numbers, 4, NULL, 0, back, NULL, 0);
}

Result cuInit(unsigned flags) { return flags ? done(INVALID_VALUE) : (initialized = 1, done(OK)); }
Result cuDriverGetVersion(int *version) { return version ? (*version = VERSION, done(OK)) : done(INVALID_VALUE); }

Result cuDeviceGetCount(int *count) { STARTED(); *count = 1; return done(OK); }
Result cuDeviceGet(int *device, int ordinal) {
    STARTED();
    if (ordinal) return done(INVALID_DEVICE);
    *device = DEVICE;
    return done(OK);
}

static int attribute_of(int attribute) {
    uint64_t back[WIRE_WORDS];
    ask("attribute", (uint64_t)attribute, 0, 0, 0, back);
    return (int)back[0];
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
    (*context)->flags = flags;
    return cuCtxPushCurrent_v2(*context);
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
Result cuCtxGetFlags(unsigned *flags) { READY(); *flags = current()->flags; return done(OK); }
Result cuCtxGetApiVersion(Context *context, unsigned *version) { (void)context; *version = VERSION; return done(OK); }
Result cuCtxGetStreamPriorityRange(int *least, int *greatest) { READY(); *least = *greatest = 0; return done(OK); }
Result cuCtxSetLimit(int limit, size_t value) { (void)limit, (void)value; READY(); return done(OK); }
Result cuCtxSetCacheConfig(int config) { (void)config; READY(); return done(OK); }
Result cuCtxSynchronize(void) { READY(); return done(ask("sync", 0, 0, 0, 0, NULL)); }

/* ------------------------------------------------------------------------------------------- memory */

Result cuMemAlloc_v2(Address *address, size_t nbytes) {
    uint64_t back[WIRE_WORDS];
    READY();
    if (!address || !nbytes) return done(INVALID_VALUE);
    int status = ask("alloc", nbytes, 0, 0, 0, back);
    if (!status) *address = back[0];
    return done(status);
}

Result cuMemAllocPitch_v2(Address *address, size_t *pitch, size_t width, size_t height, unsigned element) {
    (void)element;
    *pitch = (width + 511) / 512 * 512;
    return cuMemAlloc_v2(address, *pitch * height);
}

/* Memory that the program and kernels reach at one address. */
static Result map_memory(Address *address, size_t nbytes) {
    uint64_t back[WIRE_WORDS];
    char *path = NULL;
    READY();
    if (!address || !nbytes) return done(INVALID_VALUE);
    int status = wire_call("map", (uint64_t[]){nbytes}, 1, NULL, 0, back, &path, 0);
    if (!status) {
        int file = open(path, O_RDWR | O_CLOEXEC);
        char *start = mmap((void *)back[0], nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
        if (file < 0 || start != (char *)back[0]) {
            fprintf(stderr, "ptxgen: cannot map memory at the device's address %#lx\n", (unsigned long)back[0]);
            _exit(1);
        }
        close(file);
        Mapped *entry = malloc(sizeof *entry);
        pthread_mutex_lock(&lock);
        *entry = (Mapped){back[0], nbytes, mapped};
        mapped = entry;
        pthread_mutex_unlock(&lock);
        *address = back[0];
    }
    free(path);
    return done(status);
}

Result cuMemAllocManaged(Address *address, size_t nbytes, unsigned flags) { (void)flags; return map_memory(address, nbytes); }
Result cuMemAllocHost_v2(void **pointer, size_t nbytes) { return map_memory((Address *)pointer, nbytes); }
Result cuMemHostAlloc(void **pointer, size_t nbytes, unsigned flags) { (void)flags; return map_memory((Address *)pointer, nbytes); }
Result cuMemHostGetDevicePointer_v2(Address *address, void *pointer, unsigned flags) { (void)flags; READY(); *address = (Address)pointer; return done(OK); }

Result cuMemFree_v2(Address address) {
    READY();
    if (!address) return done(OK);
    int status = ask("free", address, 0, 0, 0, NULL);
    pthread_mutex_lock(&lock);
    Mapped **at = &mapped;
    while (!status && *at && (*at)->start != address) at = &(*at)->next;
    if (!status && *at) {
        Mapped *gone = *at;
        *at = gone->next;
        munmap((void *)gone->start, gone->nbytes);
        free(gone);
    }
    pthread_mutex_unlock(&lock);
    return done(status);
}

Result cuMemFreeHost(void *pointer) { return cuMemFree_v2((Address)pointer); }
Result cuMemAllocAsync(Address *address, size_t nbytes, void *stream) { (void)stream; return cuMemAlloc_v2(address, nbytes); }
Result cuMemFreeAsync(Address address, void *stream) { (void)stream; return cuMemFree_v2(address); }

Result cuMemGetInfo_v2(size_t *left, size_t *total) {
    uint64_t back[WIRE_WORDS];
    READY();
    int status = ask("memory_info", 0, 0, 0, 0, back);
    if (!status) *left = back[0], *total = back[1];
    return done(status);
}

Result cuMemcpyHtoD_v2(Address to, const void *from, size_t nbytes) { READY(); return done(wire_call("write", (uint64_t[]){to}, 1, from, nbytes, NULL, NULL, 0)); }
Result cuMemcpyDtoH_v2(void *to, Address from, size_t nbytes) {
    READY();
    if (!nbytes) return done(ask("sync", 0, 0, 0, 0, NULL));
    return done(wire_call("read", (uint64_t[]){from, nbytes}, 2, NULL, 0, NULL, to, nbytes));
}
Result cuMemcpyDtoD_v2(Address to, Address from, size_t nbytes) { READY(); return done(ask("copy", to, from, nbytes, 0, NULL)); }
Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t nbytes, void *stream) { (void)stream; return cuMemcpyHtoD_v2(to, from, nbytes); }
Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t nbytes, void *stream) { (void)stream; return cuMemcpyDtoH_v2(to, from, nbytes); }
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t nbytes, void *stream) { (void)stream; return cuMemcpyDtoD_v2(to, from, nbytes); }

/* `count` elements of `width` bytes. */
static Result set(Address address, unsigned value, size_t count, unsigned width) { READY(); return done(ask("fill", address, value, count * width, width, NULL)); }
Result cuMemsetD8_v2(Address address, unsigned char value, size_t count) { return set(address, value, count, 1); }
Result cuMemsetD16_v2(Address address, unsigned short value, size_t count) { return set(address, value, count, 2); }
Result cuMemsetD32_v2(Address address, unsigned value, size_t count) { return set(address, value, count, 4); }
Result cuMemsetD8Async(Address address, unsigned char value, size_t count, void *stream) { (void)stream; return set(address, value, count, 1); }
Result cuMemsetD16Async(Address address, unsigned short value, size_t count, void *stream) { (void)stream; return set(address, value, count, 2); }
Result cuMemsetD32Async(Address address, unsigned value, size_t count, void *stream) { (void)stream; return set(address, value, count, 4); }

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

/* The function that cuda.h of the given version calls by a name without a suffix. */
Result cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *why) {
    static const char *suffixes[] = {"_v4", "_v3", "_v2", ""};
    char name[128];
    (void)flags;
    void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    *function = NULL;
    for (int n = version < VERSION; self && !*function && n < 4; n++) { /* those of CUDA 13 end in _v4 */
        snprintf(name, sizeof name, "%s%s", symbol, suffixes[n]);
        *function = dlsym(self, name);
    }
    if (self) dlclose(self);
    if (why) *why = *function ? 0 : 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
    return done(*function ? OK : NOT_FOUND);
}
