/* What the sources of the driver share: types and numbers of cuda.h of CUDA 13. */
#ifndef DRIVER_H
#define DRIVER_H
#include "library.h"

typedef struct { int primary; unsigned flags; uint64_t number; } Context;

enum { NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, NO_BINARY = 209, FILE_NOT_FOUND = 301 };

/* The contents of a file, ended by as many zeros as a magic number has bytes; the caller frees them. NULL if it
   cannot be read. */
char *file_at(const char *path, size_t *nbytes);

Context *current(void); /* NULL if there is none */
Result cuCtxSynchronize(void);
#endif
