/* The CUDA runtime's functions, answered by the interpreter: what a program linked with
   `-cudart shared` calls. Streams are queues in order whose work is done at once. Layouts and numbers
   are those of cuda_runtime_api.h and driver_types.h of CUDA 13. */
#include "layouts.h"
#include "wire.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <fcntl.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, INVALID_SYMBOL = 13, INVALID_DIRECTION = 21, MISSING_CONFIGURATION = 52,
       INVALID_FUNCTION = 98, INVALID_DEVICE = 101, INVALID_HANDLE = 400, STICKY = 700, STICKY_END = 720 };
enum { TO_DEVICE = 1, TO_HOST = 2, DEVICE_TO_DEVICE = 3, BY_ADDRESS = 4 };
enum { FIRST_DEVICE_ADDRESS_BITS = 33, LAST_DEVICE_ADDRESS_BITS = 44 }; /* the arena's; no host memory is there */

typedef struct { unsigned x, y, z; } Dim3;
typedef struct { uint64_t offset, nbytes; } Parameter;
typedef struct Function {
    const void *host;
    char *name;
    uint64_t module, handle, count, parameter_bytes;
    Parameter *parameters; /* NULL until the first launch */
    struct Function *next;
} Function;
typedef struct Symbol { const void *host; char *name; uint64_t module; struct Symbol *next; } Symbol;
typedef struct Mapped { char *start; size_t nbytes; struct Mapped *next; } Mapped;
typedef struct { uint64_t recorded; } Event;
typedef struct { int id; char pad[4]; union { char room[64]; Dim3 cluster; int number; } value; } Attribute;
typedef struct { Dim3 grid, block; size_t shared; void *stream; Attribute *attributes; unsigned count; } Config;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Function *functions;
static Symbol *symbols;
static Mapped *mapped;
static uint64_t calls; /* the clock of events */
static __thread int last_error;
static __thread Config pushed;
static __thread int is_pushed;

static int done(int status) {
    __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    if (status) last_error = status;
    return status;
}

static int ask(const char *name, uint64_t a, uint64_t b, uint64_t c, uint64_t *back) {
    uint64_t numbers[] = {a, b, c};
    return wire_call(name, numbers, 3, NULL, 0, back, NULL, 0);
}

/* ------------------------------------------------------------------------------------------ errors */

int cudaPeekAtLastError(void) { return last_error; }

int cudaGetLastError(void) {
    int found = last_error;
    if (found < STICKY || found >= STICKY_END) last_error = OK; /* a kernel's fault stays */
    return found;
}

/* ------------------------------------------------------------------------------------------ memory */

static int on_device(const void *pointer) {
    uint64_t address = (uint64_t)pointer;
    return address >> FIRST_DEVICE_ADDRESS_BITS && !(address >> LAST_DEVICE_ADDRESS_BITS);
}

static Mapped **mapping_of(const void *pointer) {
    Mapped **at = &mapped;
    while (*at && !((const char *)pointer >= (*at)->start && (const char *)pointer < (*at)->start + (*at)->nbytes))
        at = &(*at)->next;
    return at;
}

int cudaMalloc(void **pointer, size_t nbytes) {
    uint64_t back[WIRE_WORDS];
    if (!pointer) return done(INVALID_VALUE);
    int status = ask("alloc", nbytes, 0, 0, back);
    if (!status) *pointer = (void *)back[0];
    return done(status);
}

/* Memory that the program and kernels reach at one address. */
static int map_memory(void **pointer, size_t nbytes) {
    uint64_t back[WIRE_WORDS];
    char *path = NULL;
    if (!pointer || !nbytes) return done(INVALID_VALUE);
    int status = wire_call("map", (uint64_t[]){nbytes}, 1, NULL, 0, back, &path, 0);
    if (!status) {
        int file = open(path, O_RDWR | O_CLOEXEC);
        int flags = MAP_SHARED | MAP_FIXED_NOREPLACE;
        char *start = mmap((void *)back[0], nbytes, PROT_READ | PROT_WRITE, flags, file, 0);
        if (file < 0 || start != (char *)back[0]) {
            fprintf(stderr, "ptxgen: cannot map memory at the device's address %#lx\n", (unsigned long)back[0]);
            _exit(1);
        }
        close(file);
        Mapped *entry = malloc(sizeof *entry);
        pthread_mutex_lock(&lock);
        *entry = (Mapped){start, nbytes, mapped};
        mapped = entry;
        pthread_mutex_unlock(&lock);
        *pointer = start;
    }
    free(path);
    return done(status);
}

int cudaMallocManaged(void **pointer, size_t nbytes, unsigned flags) { (void)flags; return map_memory(pointer, nbytes); }
int cudaMallocHost(void **pointer, size_t nbytes) { return map_memory(pointer, nbytes); }
int cudaHostAlloc(void **pointer, size_t nbytes, unsigned flags) { (void)flags; return map_memory(pointer, nbytes); }

int cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
    (void)flags;
    if (!on_device(host)) return done(INVALID_VALUE);
    *device = host;
    return done(OK);
}

int cudaFree(void *pointer) {
    if (!pointer) return done(ask("sync", 0, 0, 0, NULL));
    int status = ask("free", (uint64_t)pointer, 0, 0, NULL);
    if (!status) {
        pthread_mutex_lock(&lock);
        Mapped **at = mapping_of(pointer), *gone = *at;
        if (gone) {
            *at = gone->next;
            munmap(gone->start, gone->nbytes);
            free(gone);
        }
        pthread_mutex_unlock(&lock);
    }
    return done(status);
}

int cudaFreeHost(void *pointer) { return cudaFree(pointer); }
int cudaMallocAsync(void **pointer, size_t nbytes, void *stream) { (void)stream; return cudaMalloc(pointer, nbytes); }
int cudaFreeAsync(void *pointer, void *stream) { (void)stream; return cudaFree(pointer); }

int cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
    *pitch = (width + 511) / 512 * 512;
    return cudaMalloc(pointer, *pitch * height);
}

int cudaMemGetInfo(size_t *left, size_t *total) {
    uint64_t back[WIRE_WORDS];
    int status = ask("memory_info", 0, 0, 0, back);
    if (!status) { *left = back[0]; *total = back[1]; }
    return done(status);
}

static int copy(void *to, const void *from, size_t nbytes, int kind) {
    int target = on_device(to), source = on_device(from);
    if (kind < 0 || kind > BY_ADDRESS) return INVALID_DIRECTION;
    /* Pinned and managed memory is at addresses of the device, and stands for either side. */
    if ((kind == TO_DEVICE || kind == DEVICE_TO_DEVICE) && !target) return INVALID_VALUE;
    if ((kind == TO_HOST || kind == DEVICE_TO_DEVICE) && !source) return INVALID_VALUE;
    if (target && source) return ask("copy", (uint64_t)to, (uint64_t)from, nbytes, NULL);
    if (target) return wire_call("write", (uint64_t[]){(uint64_t)to}, 1, from, nbytes, NULL, NULL, 0);
    if (source) return nbytes ? wire_call("read", (uint64_t[]){(uint64_t)from, nbytes}, 2, NULL, 0, NULL, to, nbytes)
                              : ask("sync", 0, 0, 0, NULL);
    int status = ask("sync", 0, 0, 0, NULL);
    if (!status) memmove(to, from, nbytes);
    return status;
}

static int copy_rows(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t rows, int kind) {
    if (width > to_pitch || width > from_pitch) return 12; /* cudaErrorInvalidPitchValue */
    for (size_t row = 0; row < rows; row++) {
        int status = copy(to + row * to_pitch, from + row * from_pitch, width, kind);
        if (status) return status;
    }
    return OK;
}

int cudaMemcpy(void *to, const void *from, size_t nbytes, int kind) { return done(copy(to, from, nbytes, kind)); }
int cudaMemcpyAsync(void *to, const void *from, size_t nbytes, int kind, void *stream) { (void)stream; return cudaMemcpy(to, from, nbytes, kind); }
int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows, int kind) { return done(copy_rows(to, to_pitch, from, from_pitch, width, rows, kind)); }
int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows, int kind, void *stream) { (void)stream; return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, rows, kind); }
int cudaMemset(void *pointer, int value, size_t nbytes) { return done(ask("fill", (uint64_t)pointer, (uint8_t)value, nbytes, NULL)); }
int cudaMemsetAsync(void *pointer, int value, size_t nbytes, void *stream) { (void)stream; return cudaMemset(pointer, value, nbytes); }
int cudaMemset2D(void *pointer, size_t pitch, int value, size_t width, size_t rows) {
    for (size_t row = 0; row < rows; row++) {
        int status = ask("fill", (uint64_t)pointer + row * pitch, (uint8_t)value, width, NULL);
        if (status) return done(status);
    }
    return done(OK);
}
int cudaMemPrefetchAsync(void) { return done(OK); } /* a hint */
int cudaMemAdvise(void) { return done(OK); }        /* a hint */

/* -------------------------------------------------------------------------- what nvcc registers */

typedef struct { int magic, version; const void *data; void *more; } FatBinary;

void **__cudaRegisterFatBinary(void *wrapper) {
    const FatBinary *found = wrapper;
    if (found->version != 1) wire_unanswered("__cudaRegisterFatBinary for code linked on the device (nvcc -rdc=true)");
    const char *data = found->data;
    uint64_t back[WIRE_WORDS], nbytes;
    uint16_t header;
    memcpy(&header, data + 6, sizeof header);
    memcpy(&nbytes, data + 8, sizeof nbytes);
    char *said = NULL;
    if (wire_call("load", NULL, 0, data, header + nbytes, back, &said, 0)) wire_unanswered("__cudaRegisterFatBinary for device code that is damaged");
    free(said);
    uint64_t *handle = malloc(sizeof *handle);
    *handle = back[0];
    return (void **)handle;
}

void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
char __cudaInitModule(void **handle) { (void)handle; return 1; }

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *tid, void *bid, void *block, void *grid, int *warp) {
    (void)device, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    Function *entry = calloc(1, sizeof *entry);
    *entry = (Function){.host = host, .name = strdup(name), .module = *(uint64_t *)handle};
    pthread_mutex_lock(&lock);
    entry->next = functions;
    functions = entry;
    pthread_mutex_unlock(&lock);
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t nbytes, int constant, int global) {
    (void)device, (void)ext, (void)nbytes, (void)constant, (void)global;
    Symbol *entry = malloc(sizeof *entry);
    *entry = (Symbol){host, strdup(name), *(uint64_t *)handle, symbols};
    symbols = entry;
}

static int copy_symbol(const void *symbol, void *other, size_t nbytes, size_t offset, int reads) {
    Symbol *found = symbols;
    while (found && found->host != symbol) found = found->next;
    if (!found) return INVALID_SYMBOL;
    size_t length = strlen(found->name) + 1;
    char *staged = malloc(length + nbytes);
    memcpy(staged, found->name, length);
    int status = OK;
    if (!reads) status = copy(staged + length, other, nbytes, BY_ADDRESS);
    uint64_t numbers[] = {found->module, offset, nbytes, length};
    char *data = NULL;
    if (!status) status = wire_call(reads ? "read_symbol" : "write_symbol", numbers, 4, staged, length + (reads ? 0 : nbytes), NULL, &data, 0);
    if (!status && reads) status = copy(other, data, nbytes, BY_ADDRESS);
    free(data);
    free(staged);
    return status;
}

int cudaMemcpyToSymbol(const void *symbol, const void *from, size_t nbytes, size_t offset, int kind) { (void)kind; return done(copy_symbol(symbol, (void *)from, nbytes, offset, 0)); }
int cudaMemcpyFromSymbol(void *to, const void *symbol, size_t nbytes, size_t offset, int kind) { (void)kind; return done(copy_symbol(symbol, to, nbytes, offset, 1)); }
int cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t nbytes, size_t offset, int kind, void *stream) { (void)stream; return cudaMemcpyToSymbol(symbol, from, nbytes, offset, kind); }
int cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t nbytes, size_t offset, int kind, void *stream) { (void)stream; return cudaMemcpyFromSymbol(to, symbol, nbytes, offset, kind); }

static int symbol_place(const void *symbol, uint64_t *back) {
    Symbol *found = symbols;
    while (found && found->host != symbol) found = found->next;
    return found ? wire_call("symbol", (uint64_t[]){found->module}, 1, found->name, strlen(found->name), back, NULL, 0) : INVALID_SYMBOL;
}

int cudaGetSymbolAddress(void **address, const void *symbol) {
    uint64_t back[WIRE_WORDS];
    int status = symbol_place(symbol, back);
    if (!status && !back[0]) wire_unanswered("cudaGetSymbolAddress for a variable in constant memory");
    if (!status) *address = (void *)back[0];
    return done(status);
}

int cudaGetSymbolSize(size_t *nbytes, const void *symbol) {
    uint64_t back[WIRE_WORDS];
    int status = symbol_place(symbol, back);
    if (!status) *nbytes = back[1];
    return done(status);
}

/* ---------------------------------------------------------------------------------------- launches */

/* The kernel of a host function or of a handle, with its parameters; NULL and a status if there is none. */
static Function *function_of(const void *host, int *status) {
    *status = INVALID_FUNCTION;
    pthread_mutex_lock(&lock);
    Function *found = functions;
    while (found && found->host != host && found != host) found = found->next;
    if (found && !found->parameters) {
        uint64_t back[WIRE_WORDS];
        Parameter *given = NULL;
        *status = wire_call("function", (uint64_t[]){found->module}, 1, found->name, strlen(found->name), back, &given, 0);
        if (!*status) {
            found->handle = back[0], found->count = back[1], found->parameter_bytes = back[2];
            found->parameters = given;
        } else {
            found = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    if (found) *status = OK;
    return found;
}

static int launch(const void *host, const Config *config, void **args, Dim3 cluster) {
    int status;
    Function *f = function_of(host, &status);
    if (!f) return status;
    char *packed = calloc(1, f->parameter_bytes + 1), *printed = NULL;
    for (uint64_t n = 0; n < f->count; n++)
        memcpy(packed + f->parameters[n].offset, args[n], f->parameters[n].nbytes);
    uint64_t numbers[] = {f->handle, config->grid.x, config->grid.y, config->grid.z, config->block.x, config->block.y,
                          config->block.z, config->shared, cluster.x, cluster.y, cluster.z};
    fflush(stdout);
    status = wire_call("launch", numbers, 11, packed, f->parameter_bytes, NULL, &printed, 0);
    fputs(printed, stdout);
    free(printed);
    free(packed);
    return status;
}

unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void *stream) {
    pushed = (Config){.grid = grid, .block = block, .shared = shared, .stream = stream};
    is_pushed = 1;
    return OK;
}

int __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, void *stream) {
    if (!is_pushed) return done(MISSING_CONFIGURATION);
    is_pushed = 0;
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *(void **)stream = pushed.stream;
    return OK;
}

int __cudaGetKernel(void **kernel, const void *host) {
    int status;
    *kernel = function_of(host, &status);
    return done(status);
}

int cudaLaunchKernel(const void *host, Dim3 grid, Dim3 block, void **args, size_t shared, void *stream) {
    Config config = {.grid = grid, .block = block, .shared = shared, .stream = stream};
    return done(launch(host, &config, args, (Dim3){1, 1, 1}));
}

int __cudaLaunchKernel(void *kernel, Dim3 grid, Dim3 block, void **args, size_t shared, void *stream) { return cudaLaunchKernel(kernel, grid, block, args, shared, stream); }
int cudaLaunchCooperativeKernel(const void *host, Dim3 grid, Dim3 block, void **args, size_t shared, void *stream) { return cudaLaunchKernel(host, grid, block, args, shared, stream); }

int cudaLaunchKernelExC(const Config *config, const void *host, void **args) {
    Dim3 cluster = {1, 1, 1};
    for (unsigned n = 0; n < config->count; n++) {
        Attribute *given = &config->attributes[n];
        if (given->id == 4) cluster = given->value.cluster;
        /* 0 none, 2 cooperative, 6 programmatic order, 8 priority: nothing to do where each launch ends at once. */
        else if (given->id != 0 && given->id != 2 && given->id != 6 && given->id != 8)
            wire_unanswered("cudaLaunchKernelExC with an attribute other than cluster, cooperative, priority and programmatic");
    }
    return done(launch(host, config, args, cluster));
}

int cudaFuncGetAttributes(FunctionAttributes *out, const void *host) {
    uint64_t back[WIRE_WORDS];
    int status;
    Function *f = function_of(host, &status);
    if (f) status = ask("attributes", f->handle, 0, 0, back);
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
    if (f && attribute == 8) status = ask("allow_shared", f->handle, (uint64_t)value, 0, NULL);
    else if (f && attribute != 9) wire_unanswered("cudaFuncSetAttribute for an attribute other than shared memory");
    return done(status);
}

int cudaFuncSetCacheConfig(const void *host, int config) { int status; (void)config; function_of(host, &status); return done(status); }

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host, int threads, size_t shared, unsigned flags) {
    uint64_t back[WIRE_WORDS];
    int status;
    (void)flags;
    Function *f = function_of(host, &status);
    if (f) status = ask("occupancy", f->handle, (uint64_t)threads, shared, back);
    if (!status) *blocks = (int)back[0];
    return done(status);
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int threads, size_t shared) { return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, threads, shared, 0); }

/* ------------------------------------------------------------------------------------------ device */

static int attribute_of(int attribute) {
    uint64_t back[WIRE_WORDS];
    ask("attribute", (uint64_t)attribute, 0, 0, back);
    return (int)back[0];
}

int cudaGetDeviceCount(int *count) { *count = 1; return done(OK); }
int cudaSetDevice(int device) { return done(device ? INVALID_DEVICE : OK); }
int cudaGetDevice(int *device) { *device = 0; return done(OK); }
int cudaSetDeviceFlags(unsigned flags) { (void)flags; return done(OK); }
int cudaDeviceSynchronize(void) { return done(ask("sync", 0, 0, 0, NULL)); }
int cudaDeviceReset(void) { return done(ask("reset", 0, 0, 0, NULL)); }
int cudaRuntimeGetVersion(int *version) { *version = 13000; return done(OK); }
int cudaDriverGetVersion(int *version) { return cudaRuntimeGetVersion(version); }
int cudaDeviceSetLimit(int limit, size_t value) { (void)limit, (void)value; return done(OK); }

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
    uint64_t back[WIRE_WORDS];
    ask("memory_info", 0, 0, 0, back);
    out->memory = back[1];
    /* The numbers are those of cudaDeviceAttr. */
    out->threads_per_block = attribute_of(1);
    for (int n = 0; n < 3; n++) out->block[n] = attribute_of(2 + n), out->grid[n] = attribute_of(5 + n);
    out->shared_per_block = (size_t)attribute_of(8), out->constant = (size_t)attribute_of(9);
    out->warp = attribute_of(10), out->pitch = (size_t)attribute_of(11), out->registers_per_block = attribute_of(12);
    out->multiprocessors = attribute_of(16), out->concurrent_kernels = attribute_of(31);
    out->threads_per_multiprocessor = attribute_of(39), out->unified = attribute_of(41);
    out->major = attribute_of(75), out->minor = attribute_of(76);
    out->shared_per_multiprocessor = (size_t)attribute_of(81), out->registers_per_multiprocessor = attribute_of(82);
    out->managed = attribute_of(83), out->concurrent_managed = attribute_of(89), out->cooperative = attribute_of(95);
    out->shared_optin = (size_t)attribute_of(97), out->blocks_per_multiprocessor = attribute_of(106);
    out->shared_reserved = (size_t)attribute_of(111), out->cluster = attribute_of(120);
    out->maps_host_memory = 1;
    return done(OK);
}

/* ------------------------------------------------------------------------------ streams and events */

int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    (void)flags, (void)priority;
    *stream = malloc(1);
    return done(OK);
}
int cudaStreamCreate(void **stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = *greatest = 0; return done(OK); }
int cudaStreamDestroy(void *stream) { free(stream); return done(OK); }
int cudaStreamSynchronize(void *stream) { (void)stream; return cudaDeviceSynchronize(); }
int cudaStreamQuery(void *stream) { (void)stream; return cudaDeviceSynchronize(); }
int cudaStreamWaitEvent(void *stream, Event *event, unsigned flags) { (void)stream, (void)flags; return done(event ? OK : INVALID_HANDLE); }
int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) { (void)stream; function(data); return done(OK); }

int cudaEventCreateWithFlags(Event **event, unsigned flags) { (void)flags; *event = calloc(1, sizeof **event); return done(OK); }
int cudaEventCreate(Event **event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventDestroy(Event *event) { free(event); return done(OK); }
int cudaEventRecord(Event *event, void *stream) {
    (void)stream;
    if (!event) return done(INVALID_HANDLE);
    event->recorded = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    return done(OK);
}
int cudaEventSynchronize(Event *event) { return event ? cudaDeviceSynchronize() : done(INVALID_HANDLE); }
int cudaEventQuery(Event *event) { return cudaEventSynchronize(event); }
int cudaEventElapsedTime(float *milliseconds, Event *start, Event *end) {
    if (!start || !end || !start->recorded || !end->recorded) return done(INVALID_HANDLE);
    *milliseconds = (float)((double)end->recorded - (double)start->recorded); /* calls, not time */
    return done(OK);
}
