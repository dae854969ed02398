/* What driver.c and driver_kernels.c share: types and numbers of cuda.h of CUDA 13, and the state. */
#ifndef DRIVER_H
#define DRIVER_H
#include "wire.h"

typedef int Result;
typedef uint64_t Address;
typedef struct { int primary; unsigned flags; } Context;

enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NO_BINARY = 209,
       FILE_NOT_FOUND = 301, INVALID_HANDLE = 400, NOT_FOUND = 500 };
enum { VERSION = 13000 };

/* Why a call that needs a context cannot be made: 0 if it can. */
Result unready(void);
#define READY() do { Result why = unready(); if (why) return why; } while (0)

/* The number of this call, counted from 1: the clock of events. */
uint64_t tick(void);

/* A call's status as the driver returns it. */
Result done(int status);

int ask(const char *name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t *back);
Result cuCtxSynchronize(void);
#endif
