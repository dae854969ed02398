/* What the sources of the runtime share. */
#ifndef RUNTIME_H
#define RUNTIME_H
#include "layouts.h"
#include "library.h"

typedef struct { unsigned x, y, z; } Dim3;
typedef struct { uint64_t offset, nbytes; } Parameter;
typedef struct Function {
    const void *host;
    char *name;
    uint64_t module, handle, count, parameter_bytes;
    Parameter *parameters; /* NULL until the first launch */
    struct Function *next;
} Function;
typedef struct { Dim3 grid, block; size_t shared; void *stream; LaunchAttribute *attributes; unsigned count; } Config;

/* The kernel of a host function or of a handle, with its parameters; NULL and a status if there is none. */
Function *function_of(const void *host, int *status);

/* The runtime works in the device's primary context, which its first call makes that of the thread. */
void start_driver(void);
#endif
