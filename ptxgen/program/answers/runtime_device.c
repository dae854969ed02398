/* What the runtime says of kernels and of the device, and its way to the driver. */
#define _GNU_SOURCE
#include "runtime.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID_FUNCTION = 98 };
enum { DYNAMIC_SHARED = 8, CARVEOUT = 9, NON_PORTABLE_CLUSTER = 14 }; /* cudaFuncAttribute */

/* ----------------------------------------------------------------------------------------- kernels */

int cudaFuncGetAttributes(FunctionAttributes *out, const void *host) {
    uint64_t back[WIRE_WORDS];
    int status;
    Function *f = function_of(host, &status);
    if (f) status = ask("attributes", f->handle, 0, 0, 0, back);
    if (!status) {
        /* The members up to carveout; later versions of CUDA have appended others. */
        out->shared = back[0], out->constant = back[1], out->local = back[2];
        out->threads = (int)back[3], out->registers = (int)back[4], out->ptx = (int)back[5], out->binary = (int)back[6];
        out->cache = 0, out->most_dynamic = (int)back[7], out->carveout = -1;
    }
    return done(status);
}

int cudaFuncSetAttribute(const void *host, int attribute, int value) {
    int status;
    Function *f = function_of(host, &status);
    if (f && attribute == DYNAMIC_SHARED) status = value < 0 ? INVALID_VALUE : ask("allow_shared", f->handle, (uint64_t)value, 0, 0, NULL);
    /* Carveout and the size of clusters: nothing here depends on them. */
    else if (f && attribute != CARVEOUT && attribute != NON_PORTABLE_CLUSTER)
        wire_unanswered("cudaFuncSetAttribute for an attribute other than shared memory and the size of clusters");
    return done(status);
}

int cudaFuncSetCacheConfig(const void *host, int config) { int status; (void)config; function_of(host, &status); return done(status); }
int cudaFuncSetSharedMemConfig(const void *host, int config) { return cudaFuncSetCacheConfig(host, config); }

int cudaFuncGetName(const char **name, const void *host) {
    int status;
    Function *f = function_of(host, &status);
    if (f) *name = f->name;
    return done(status);
}
int cudaFuncGetParamCount(const void *host, size_t *count) {
    int status;
    Function *f = function_of(host, &status);
    if (f) *count = f->count;
    return done(status);
}
int cudaFuncGetParamInfo(const void *host, size_t number, size_t *offset, size_t *nbytes) {
    int status;
    Function *f = function_of(host, &status);
    if (f && number >= f->count) return done(INVALID_VALUE);
    if (f) *offset = f->parameters[number].offset;
    if (f && nbytes) *nbytes = f->parameters[number].nbytes;
    return done(status);
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host, int threads, size_t shared, unsigned flags) {
    uint64_t back[WIRE_WORDS];
    int status;
    (void)flags;
    Function *f = function_of(host, &status);
    if (f) status = ask("occupancy", f->handle, (uint64_t)threads, shared, 0, back);
    if (!status) *blocks = (int)back[0];
    return done(status);
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int threads, size_t shared) { return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, threads, shared, 0); }

int cudaOccupancyAvailableDynamicSMemPerBlock(size_t *shared, const void *host, int blocks, int threads) {
    uint64_t back[WIRE_WORDS];
    int status;
    Function *f = function_of(host, &status);
    if (f) status = ask("shared_for", f->handle, (uint64_t)blocks, (uint64_t)threads, 0, back);
    if (!status) *shared = back[0];
    return done(status);
}

/* How many clusters of a launch are on the device at once, and the largest cluster that fits. */
static int clusters(const void *host, const Config *config, int *count, int *largest) {
    int status;
    Function *f = function_of(host, &status);
    if (!f) return done(status);
    Asked asked = asked_for(config->attributes, config->count, "occupancy for a launch with an event, a node of a graph or a preferred size of clusters");
    uint64_t numbers[] = {f->handle, (uint64_t)config->block.x * config->block.y * config->block.z, config->shared,
                          (uint64_t)asked.cluster[0] * asked.cluster[1] * asked.cluster[2]}, back[WIRE_WORDS];
    status = wire_call("clusters", numbers, 4, NULL, 0, back, NULL, 0);
    if (!status) *count = (int)back[0], *largest = (int)back[1];
    return done(status);
}
int cudaOccupancyMaxActiveClusters(int *count, const void *host, const Config *config) { int largest; return clusters(host, config, count, &largest); }
int cudaOccupancyMaxPotentialClusterSize(int *largest, const void *host, const Config *config) { int count; return clusters(host, config, &count, largest); }

/* ------------------------------------------------------------------------------------------ device */

int cudaGetDeviceCount(int *count) { *count = 1; return done(OK); }
int cudaSetDevice(int device) { return done(device ? INVALID_DEVICE : OK); }
int cudaInitDevice(int device, unsigned flags, unsigned which) { (void)flags, (void)which; return cudaSetDevice(device); }
int cudaSetValidDevices(int *devices, int count) { return done(count < 0 || (count && devices[0]) ? INVALID_DEVICE : OK); }
int cudaChooseDevice(int *device, const void *wanted) { (void)wanted; *device = DEVICE; return done(OK); }
int cudaGetDevice(int *device) { *device = DEVICE; return done(OK); }
int cudaSetDeviceFlags(unsigned flags) { (void)flags; return done(OK); }
int cudaGetDeviceFlags(unsigned *flags) { *flags = 8; return done(OK); } /* cudaDeviceMapHost, which is always so */
int cudaDeviceSynchronize(void) { return done(ask("sync", 0, 0, 0, 0, NULL)); }
int cudaDeviceReset(void) { return done(ask("reset", 0, 0, 0, 0, NULL)); }
int cudaRuntimeGetVersion(int *version) { *version = VERSION; return done(OK); }
int cudaDriverGetVersion(int *version) { return cudaRuntimeGetVersion(version); }
int cudaDeviceGetCacheConfig(int *config) { *config = 0; return done(OK); } /* no preference */
int cudaDeviceSetCacheConfig(int config) { (void)config; return done(OK); }
int cudaDeviceGetSharedMemConfig(int *config) { *config = 1; return done(OK); } /* banks of 4 bytes, as all these devices have */
int cudaDeviceSetSharedMemConfig(int config) { (void)config; return done(OK); }

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    if (device) return done(INVALID_DEVICE);
    *value = attribute_of(attribute);
    return done(OK);
}

int cudaGetDeviceProperties(Properties *out, int device) {
    char *name = NULL;
    if (device) return done(INVALID_DEVICE);
    memset(out, 0, sizeof *out);
    wire_call("device_name", NULL, 0, NULL, 0, NULL, &name, 0);
    strncpy(out->name, name, sizeof out->name - 1);
    free(name);
    device_uuid(out->uuid);
    uint64_t back[WIRE_WORDS];
    ask("memory_info", 0, 0, 0, 0, back);
    out->memory = back[1];
    /* The numbers are those of cudaDeviceAttr; members without a line are 0, as those attributes are. */
    out->threads_per_block = attribute_of(1);
    for (int n = 0; n < 3; n++) out->block[n] = attribute_of(2 + n), out->grid[n] = attribute_of(5 + n);
    out->shared_per_block = (size_t)attribute_of(8), out->constant = (size_t)attribute_of(9);
    out->warp = attribute_of(10), out->pitch = (size_t)attribute_of(11), out->registers_per_block = attribute_of(12);
    out->texture_alignment = (size_t)attribute_of(14), out->texture_pitch_alignment = (size_t)attribute_of(51);
    out->surface_alignment = (size_t)attribute_of(30);
    out->multiprocessors = attribute_of(16), out->concurrent_kernels = attribute_of(31);
    out->maps_host_memory = attribute_of(19), out->engines = attribute_of(40);
    out->bus_width = attribute_of(37), out->l2 = attribute_of(38);
    out->threads_per_multiprocessor = attribute_of(39), out->unified = attribute_of(41);
    out->priorities = attribute_of(78), out->l1_global = attribute_of(79), out->l1_local = attribute_of(80);
    out->major = attribute_of(75), out->minor = attribute_of(76);
    out->shared_per_multiprocessor = (size_t)attribute_of(81), out->registers_per_multiprocessor = attribute_of(82);
    out->managed = attribute_of(83), out->concurrent_managed = attribute_of(89), out->cooperative = attribute_of(95);
    out->shared_optin = (size_t)attribute_of(97), out->blocks_per_multiprocessor = attribute_of(106);
    out->shared_reserved = (size_t)attribute_of(111), out->pools = attribute_of(115), out->cluster = attribute_of(120);
    out->host_numa = attribute_of(134), out->numa = attribute_of(131);
    return done(OK);
}

/* ------------------------------------------------------------------------------------------ driver */

static void *driver(void) {
    static void *found;
    return found ? found : (found = dlopen("libcuda.so.1", RTLD_LAZY));
}

void start_driver(void) {
    static __thread int started;
    void *context = NULL;
    Result (*init)(unsigned), (*retain)(void **, int), (*get)(void **), (*set)(void *);
    if (started || !driver()) return;
    started = 1;
    *(void **)&init = dlsym(driver(), "cuInit"), *(void **)&retain = dlsym(driver(), "cuDevicePrimaryCtxRetain");
    *(void **)&get = dlsym(driver(), "cuCtxGetCurrent"), *(void **)&set = dlsym(driver(), "cuCtxSetCurrent");
    init(0), get(&context);
    if (!context) retain(&context, DEVICE), set(context);
}

int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags, int *why) {
    Result (*find)(const char *, void **, int, uint64_t, int *);
    *(void **)&find = driver() ? dlsym(driver(), "cuGetProcAddress_v2") : NULL;
    if (!find || !function || !symbol || version > VERSION) return done(INVALID_VALUE);
    find(symbol, function, (int)version, flags, why); /* one that is not found is NULL, and `why` says so */
    return done(OK);
}
int cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, int *why) { return cudaGetDriverEntryPointByVersion(symbol, function, VERSION, flags, why); }
