/* The CUDA runtime's functions, answered by the interpreter: what a program linked with `-cudart shared`
   calls. This file has what nvcc registers and launches; runtime_memory.c and runtime_device.c have the rest,
   with what the driver has as well (library.h). Layouts and numbers are those of cuda_runtime_api.h and
   driver_types.h of CUDA 13. */
#include "runtime.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID_SYMBOL = 13, MISSING_CONFIGURATION = 52, INVALID_FUNCTION = 98, STICKY = 700, STICKY_END = 720 };

typedef struct Symbol { const void *host; char *name; uint64_t module; struct Symbol *next; } Symbol;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Function *functions;
static Symbol *symbols;
static uint64_t calls;
static __thread int last_error;
static __thread Config pushed;
static __thread int is_pushed;

Result unready(void) { return OK; } /* the runtime starts itself */
uint64_t tick(void) { return __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED); }

Result done(int status) {
    start_driver();
    tick();
    if (status) last_error = status;
    return status;
}

/* ------------------------------------------------------------------------------------------ errors */

int cudaPeekAtLastError(void) { return last_error; }

int cudaGetLastError(void) {
    int found = last_error;
    if (found < STICKY || found >= STICKY_END) last_error = OK; /* a kernel's fault stays */
    return found;
}

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
Function *function_of(const void *host, int *status) {
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

static int launch(const void *host, const Config *config, void **args, Dim3 cluster, int cooperative) {
    int status;
    Function *f = function_of(host, &status);
    if (!f) return status;
    char *packed = calloc(1, f->parameter_bytes + 1), *printed = NULL;
    for (uint64_t n = 0; n < f->count; n++)
        memcpy(packed + f->parameters[n].offset, args[n], f->parameters[n].nbytes);
    uint64_t numbers[] = {f->handle, config->grid.x, config->grid.y, config->grid.z, config->block.x, config->block.y,
                          config->block.z, config->shared, cluster.x, cluster.y, cluster.z, (uint64_t)cooperative};
    fflush(stdout);
    status = wire_call("launch", numbers, 12, packed, f->parameter_bytes, NULL, &printed, 0);
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
    return done(launch(host, &config, args, (Dim3){1, 1, 1}, 0));
}

int __cudaLaunchKernel(void *kernel, Dim3 grid, Dim3 block, void **args, size_t shared, void *stream) { return cudaLaunchKernel(kernel, grid, block, args, shared, stream); }
int cudaLaunchCooperativeKernel(const void *host, Dim3 grid, Dim3 block, void **args, size_t shared, void *stream) {
    Config config = {.grid = grid, .block = block, .shared = shared, .stream = stream};
    return done(launch(host, &config, args, (Dim3){1, 1, 1}, 1));
}

int cudaLaunchKernelExC(const Config *config, const void *host, void **args) {
    Asked asked = asked_for(config->attributes, config->count, "cudaLaunchKernelExC with an event, a node of a graph or a preferred size of clusters");
    return done(launch(host, config, args, (Dim3){asked.cluster[0], asked.cluster[1], asked.cluster[2]}, asked.cooperative));
}
