/* The driver's functions for modules and kernels. */
#include "driver.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { ERROR_LOG = 5, ERROR_LOG_BYTES = 6 }; /* CUjit_option */
enum { END = 0, POINTER = 1, SIZE = 2 };     /* CU_LAUNCH_PARAM_… */
enum { DIMENSIONS = 5, MAP_BYTES = 128, MAP_ALIGN = 64 }; /* of a CUtensorMap */
enum { FATBIN = 0xBA55ED50u, FATBIN_WRAPPER = 0x466243b1u };

typedef struct { uint64_t number; } Module;
typedef struct { uint64_t offset, nbytes; } Parameter;
typedef struct Function {
    Module *module;
    uint64_t number; /* of the module: the memory of one that is unloaded becomes that of another */
    char *name;
    uint64_t handle, count, parameter_bytes;
    Parameter *parameters;
    struct Function *next;
} Function;
typedef struct { unsigned grid[3], block[3], shared; void *stream; LaunchAttribute *attributes; unsigned count; } Config;
typedef struct { unsigned magic, version; const void *data; void *more; } FatBinary;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Function *functions;

/* -------------------------------------------------------------------------------------- tensor maps */

Result cuTensorMapEncodeTiled(void *map, int type, unsigned rank, Address address, const uint64_t *dims, const uint64_t *strides,
                              const unsigned *box, const unsigned *steps, int interleave, int swizzle, int promotion, int fill) {
    uint64_t of[4][DIMENSIONS] = {{0}}; /* dims, strides, box, steps */
    uint64_t numbers[] = {(uint64_t)type, rank, address, (uint64_t)interleave, (uint64_t)swizzle, (uint64_t)promotion, (uint64_t)fill};
    if (!map || (uintptr_t)map % MAP_ALIGN || !rank || rank > DIMENSIONS || !dims || (rank > 1 && !strides) || !box || !steps)
        return done(INVALID_VALUE);
    for (unsigned n = 0; n < rank; n++) {
        of[0][n] = dims[n], of[2][n] = box[n], of[3][n] = steps[n];
        if (n + 1 < rank) of[1][n] = strides[n];
    }
    return done(wire_call("tensor_map", numbers, 7, of, sizeof of, NULL, map, MAP_BYTES));
}

/* ------------------------------------------------------------------------------------------ modules */

/* The log of the options of cuModuleLoadDataEx gets `text`. */
static void log_error(const char *text, unsigned count, const int *options, void **values) {
    char *log = NULL;
    size_t room = 0;
    for (unsigned n = 0; n < count; n++) {
        if (options[n] == ERROR_LOG) log = values[n];
        if (options[n] == ERROR_LOG_BYTES) room = (size_t)values[n];
    }
    if (log && room) snprintf(log, room, "%s", text);
}

Result cuModuleLoadDataEx(Module **module, const void *image, unsigned count, int *options, void **values) {
    uint64_t back[WIRE_WORDS];
    char *said = NULL;
    unsigned magic;
    READY();
    if (!module || !image) return done(INVALID_VALUE);
    memcpy(&magic, image, sizeof magic);
    if (magic == FATBIN_WRAPPER) image = ((const FatBinary *)image)->data, magic = FATBIN;
    int status;
    if (magic == FATBIN) {
        uint16_t header;
        uint64_t nbytes;
        memcpy(&header, (const char *)image + 6, sizeof header);
        memcpy(&nbytes, (const char *)image + 8, sizeof nbytes);
        status = wire_call("load", NULL, 0, image, header + nbytes, back, &said, 0);
    } else if (!memcmp(image, "\177ELF", 4)) {
        said = strdup("this is machine code; the interpreter needs PTX");
        status = NO_BINARY;
    } else {
        status = wire_call("load_ptx", NULL, 0, image, strlen(image), back, &said, 0);
    }
    log_error(said ? said : "", count, options, values);
    free(said);
    if (!status) {
        *module = malloc(sizeof **module);
        (*module)->number = back[0];
    }
    return done(status);
}

Result cuModuleLoadData(Module **module, const void *image) { return cuModuleLoadDataEx(module, image, 0, NULL, NULL); }
Result cuModuleLoadFatBinary(Module **module, const void *image) { return cuModuleLoadData(module, image); }
Result cuModuleGetLoadingMode(int *mode) { *mode = 1; return done(OK); } /* eager */

char *file_at(const char *path, size_t *nbytes) {
    FILE *file = fopen(path, "rb");
    struct stat about;
    char *data = NULL;
    if (!file) return NULL;
    if (!fstat(fileno(file), &about)) {
        data = calloc(1, (size_t)about.st_size + 8);
        *nbytes = fread(data, 1, (size_t)about.st_size, file);
    }
    fclose(file);
    return data;
}

Result cuModuleLoad(Module **module, const char *path) {
    size_t nbytes;
    READY();
    char *data = file_at(path, &nbytes);
    if (!data) return done(FILE_NOT_FOUND);
    Result status = cuModuleLoadData(module, data);
    free(data);
    return status;
}

Result cuModuleUnload(Module *module) { READY(); free(module); return done(module ? OK : INVALID_HANDLE); }

Result cuModuleGetFunction(Function **function, Module *module, const char *name) {
    uint64_t back[WIRE_WORDS];
    Parameter *parameters = NULL;
    READY();
    if (!module || !function || !name) return done(INVALID_VALUE);
    pthread_mutex_lock(&lock);
    Function *found = functions;
    while (found && (found->number != module->number || strcmp(found->name, name))) found = found->next;
    int status = OK;
    if (!found) status = wire_call("function", (uint64_t[]){module->number}, 1, name, strlen(name), back, &parameters, 0);
    if (!found && !status) {
        found = malloc(sizeof *found);
        *found = (Function){module, module->number, strdup(name), back[0], back[1], back[2], parameters, functions};
        functions = found;
    }
    pthread_mutex_unlock(&lock);
    *function = found;
    return done(status);
}

Result cuModuleGetGlobal_v2(Address *address, size_t *nbytes, Module *module, const char *name) {
    uint64_t back[WIRE_WORDS];
    READY();
    if (!module || !name) return done(INVALID_VALUE);
    int status = wire_call("symbol", (uint64_t[]){module->number}, 1, name, strlen(name), back, NULL, 0);
    if (!status && !back[0]) wire_unanswered("cuModuleGetGlobal for a variable in constant memory");
    if (!status && address) *address = back[0];
    if (!status && nbytes) *nbytes = back[1];
    return done(status);
}

/* A library is a module, and a kernel of it a function. */
Result cuLibraryLoadData(Module **library, const void *code, int *options, void **values, unsigned count, int *of_library, void **its_values, unsigned its_count) {
    (void)of_library, (void)its_values, (void)its_count;
    return cuModuleLoadDataEx(library, code, count, options, values);
}
Result cuLibraryLoadFromFile(Module **library, const char *path, int *options, void **values, unsigned count, int *of_library, void **its_values, unsigned its_count) {
    (void)options, (void)values, (void)count, (void)of_library, (void)its_values, (void)its_count;
    return cuModuleLoad(library, path);
}
Result cuLibraryGetGlobal(Address *address, size_t *nbytes, Module *library, const char *name) { return cuModuleGetGlobal_v2(address, nbytes, library, name); }
Result cuLibraryUnload(Module *library) { return cuModuleUnload(library); }
Result cuLibraryGetModule(Module **module, Module *library) { READY(); *module = library; return done(OK); }
Result cuLibraryGetKernel(Function **kernel, Module *library, const char *name) { return cuModuleGetFunction(kernel, library, name); }
Result cuKernelGetLibrary(Module **library, Function *kernel) { READY(); *library = kernel->module; return done(OK); }

/* The names of a module's kernels, each ended by a 0; the caller frees them. */
static Result kernels_of(const Module *module, unsigned *count, char **names) {
    uint64_t back[WIRE_WORDS];
    READY();
    if (!module) return done(INVALID_HANDLE);
    int status = wire_call("kernels", (uint64_t[]){module->number}, 1, NULL, 0, back, names, 0);
    if (!status) *count = (unsigned)back[0];
    return done(status);
}
Result cuModuleGetFunctionCount(unsigned *count, Module *module) {
    char *names = NULL;
    Result status = kernels_of(module, count, &names);
    free(names);
    return status;
}
Result cuModuleEnumerateFunctions(Function **functions_of, unsigned room, Module *module) {
    char *names = NULL, *name;
    unsigned count;
    Result status = kernels_of(module, &count, &names);
    name = names;
    for (unsigned n = 0; !status && n < count && n < room; n++, name += strlen(name) + 1) status = cuModuleGetFunction(&functions_of[n], module, name);
    free(names);
    return status;
}
Result cuLibraryGetKernelCount(unsigned *count, Module *library) { return cuModuleGetFunctionCount(count, library); }
Result cuLibraryEnumerateKernels(Function **kernels, unsigned room, Module *library) { return cuModuleEnumerateFunctions(kernels, room, library); }
Result cuKernelGetFunction(Function **function, Function *kernel) { READY(); *function = kernel; return done(OK); }

/* ----------------------------------------------------------------------------------------- functions */

Result cuFuncGetAttribute(int *value, int attribute, Function *function) {
    uint64_t back[WIRE_WORDS];
    READY();
    if (!function) return done(INVALID_HANDLE);
    int status = ask("attributes", function->handle, 0, 0, 0, back);
    /* CU_FUNC_ATTRIBUTE_…: threads, static shared, constant, local, registers, PTX, binary, cache, dynamic shared */
    static const int columns[] = {3, 0, 1, 2, 4, 5, 6, -1, 7};
    enum { CARVEOUT = 9 };
    if (attribute < 0) return done(INVALID_VALUE);
    if (attribute > CARVEOUT) wire_unanswered("cuFuncGetAttribute for an attribute above 9");
    if (!status) *value = attribute == CARVEOUT ? -1 : columns[attribute] < 0 ? 0 : (int)back[columns[attribute]];
    return done(status);
}

Result cuFuncSetAttribute(Function *function, int attribute, int value) {
    READY();
    if (!function) return done(INVALID_HANDLE);
    if (attribute == 8) return done(value < 0 ? INVALID_VALUE : ask("allow_shared", function->handle, (uint64_t)value, 0, 0, NULL));
    /* Carveout and the size of clusters: nothing here depends on them. */
    if (attribute != 9 && attribute != 14) wire_unanswered("cuFuncSetAttribute for an attribute other than shared memory and the size of clusters");
    return done(OK);
}

Result cuKernelGetAttribute(int *value, int attribute, Function *kernel, int device) { return device ? done(INVALID_DEVICE) : cuFuncGetAttribute(value, attribute, kernel); }
Result cuKernelSetAttribute(int attribute, int value, Function *kernel, int device) { return device ? done(INVALID_DEVICE) : cuFuncSetAttribute(kernel, attribute, value); }
Result cuFuncSetCacheConfig(Function *function, int config) { (void)config; READY(); return done(function ? OK : INVALID_HANDLE); }
Result cuFuncGetModule(Module **module, Function *function) { READY(); *module = function->module; return done(OK); }
Result cuFuncGetName(const char **name, Function *function) { READY(); *name = function->name; return done(OK); }

Result cuKernelGetName(const char **name, Function *kernel) { return cuFuncGetName(name, kernel); }
Result cuFuncIsLoaded(int *state, Function *function) { READY(); *state = 1; return done(function ? OK : INVALID_HANDLE); }
Result cuFuncLoad(Function *function) { READY(); return done(function ? OK : INVALID_HANDLE); }
Result cuKernelSetCacheConfig(Function *kernel, int config, int device) { (void)config, (void)device; READY(); return done(kernel ? OK : INVALID_HANDLE); }
Result cuFuncGetParamCount(Function *function, size_t *count) { READY(); if (!function) return done(INVALID_HANDLE); *count = function->count; return done(OK); }
Result cuKernelGetParamCount(Function *kernel, size_t *count) { return cuFuncGetParamCount(kernel, count); }

Result cuFuncGetParamInfo(Function *function, size_t number, size_t *offset, size_t *nbytes) {
    READY();
    if (!function || number >= function->count) return done(INVALID_VALUE);
    *offset = function->parameters[number].offset;
    if (nbytes) *nbytes = function->parameters[number].nbytes;
    return done(OK);
}

Result cuKernelGetParamInfo(Function *kernel, size_t number, size_t *offset, size_t *nbytes) { return cuFuncGetParamInfo(kernel, number, offset, nbytes); }

Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, Function *function, int threads, size_t shared, unsigned flags) {
    uint64_t back[WIRE_WORDS];
    (void)flags;
    READY();
    if (!function) return done(INVALID_HANDLE);
    int status = ask("occupancy", function->handle, (uint64_t)threads, shared, 0, back);
    if (!status) *blocks = (int)back[0];
    return done(status);
}
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Function *function, int threads, size_t shared) { return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0); }

Result cuOccupancyAvailableDynamicSMemPerBlock(size_t *shared, Function *function, int blocks, int threads) {
    uint64_t back[WIRE_WORDS];
    READY();
    if (!function) return done(INVALID_HANDLE);
    int status = ask("shared_for", function->handle, (uint64_t)blocks, (uint64_t)threads, 0, back);
    if (!status) *shared = back[0];
    return done(status);
}

/* The size of a block with which most threads are on a multiprocessor at once: the largest of those. */
Result cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *threads, Function *function, size_t (*shared_for)(int), size_t shared, int limit, unsigned flags) {
    enum { MULTIPROCESSORS = 16, WARP = 10, MAX_THREADS = 0 }; /* attributes of the device, and of a function */
    int most = 0, largest;
    Result status = cuFuncGetAttribute(&largest, MAX_THREADS, function);
    if (limit > 0 && limit < largest) largest = limit;
    int warp = attribute_of(WARP);
    for (int size = largest / warp * warp; !status && size > 0; size -= warp) {
        int blocks;
        status = cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, function, size, shared_for ? shared_for(size) : shared, flags);
        if (!status && blocks * size > most) most = blocks * size, *threads = size, *grid = blocks * attribute_of(MULTIPROCESSORS);
    }
    return status;
}
Result cuOccupancyMaxPotentialBlockSize(int *grid, int *threads, Function *function, size_t (*shared_for)(int), size_t shared, int limit) { return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, threads, function, shared_for, shared, limit, 0); }

/* The block of arguments: from an address for each, or as `extra` gives it. */
static Result arguments(const Function *function, void **values, void **extra, char *packed) {
    const char *block = NULL;
    size_t nbytes = 0;
    if (values && extra) return INVALID_VALUE;
    if (values || !function->count) {
        for (uint64_t n = 0; n < function->count; n++)
            memcpy(packed + function->parameters[n].offset, values[n], function->parameters[n].nbytes);
        return OK;
    }
    for (; extra && *extra != (void *)END; extra += 2) {
        if (*extra == (void *)POINTER) block = extra[1];
        else if (*extra == (void *)SIZE) nbytes = *(size_t *)extra[1];
        else return INVALID_VALUE;
    }
    if (!block || nbytes < function->parameter_bytes) return INVALID_VALUE;
    memcpy(packed, block, function->parameter_bytes);
    return OK;
}

static Result launch(Function *function, const Config *config, const unsigned *cluster, int cooperative, void **values, void **extra) {
    READY();
    if (!function) return done(INVALID_HANDLE);
    char *packed = calloc(1, function->parameter_bytes + 1), *printed = NULL;
    int status = arguments(function, values, extra, packed);
    uint64_t numbers[] = {function->handle, config->grid[0], config->grid[1], config->grid[2], config->block[0], config->block[1],
                          config->block[2], config->shared, cluster[0], cluster[1], cluster[2], (uint64_t)cooperative};
    fflush(stdout);
    if (!status) status = wire_call("launch", numbers, 12, packed, function->parameter_bytes, NULL, &printed, 0);
    if (printed) fputs(printed, stdout);
    free(printed);
    free(packed);
    return done(status);
}

static const unsigned alone[3] = {1, 1, 1}; /* no cluster */

Result cuLaunchKernel(Function *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared, void *stream, void **values, void **extra) {
    Config config = {.grid = {x, y, z}, .block = {threads_x, threads_y, threads_z}, .shared = shared, .stream = stream};
    return launch(function, &config, alone, 0, values, extra);
}

Result cuLaunchCooperativeKernel(Function *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared, void *stream, void **values) {
    Config config = {.grid = {x, y, z}, .block = {threads_x, threads_y, threads_z}, .shared = shared, .stream = stream};
    return launch(function, &config, alone, 1, values, NULL);
}

Result cuLaunchKernelEx(const Config *config, Function *function, void **values, void **extra) {
    Asked asked = asked_for(config->attributes, config->count, "cuLaunchKernelEx with an event, a node of a graph or a preferred size of clusters");
    return launch(function, config, asked.cluster, asked.cooperative, values, extra);
}

/* How many clusters of a launch are on the device at once, and the largest cluster that fits. */
static Result clusters(Function *function, const Config *config, int *count, int *largest) {
    uint64_t numbers[] = {function ? function->handle : 0, (uint64_t)config->block[0] * config->block[1] * config->block[2], config->shared, 0}, back[WIRE_WORDS];
    READY();
    if (!function) return done(INVALID_HANDLE);
    Asked asked = asked_for(config->attributes, config->count, "occupancy for a launch with an event, a node of a graph or a preferred size of clusters");
    numbers[3] = (uint64_t)asked.cluster[0] * asked.cluster[1] * asked.cluster[2];
    int status = wire_call("clusters", numbers, 4, NULL, 0, back, NULL, 0);
    if (!status) *count = (int)back[0], *largest = (int)back[1];
    return done(status);
}
Result cuOccupancyMaxActiveClusters(int *count, Function *function, const Config *config) { int largest; return clusters(function, config, count, &largest); }
Result cuOccupancyMaxPotentialClusterSize(int *largest, Function *function, const Config *config) { int count; return clusters(function, config, &count, largest); }
