/* What the sources of both libraries share. A call whose parameters are the same in both is written once:
   as CALL(X) it is cudaX of the runtime and cuX of the driver, as CALL_V2(X) cudaX and cuX_v2. */
#ifndef LIBRARY_H
#define LIBRARY_H
#include "wire.h"

#ifdef RUNTIME
#define CALL(name) cuda##name
#define CALL_V2(name) cuda##name
#else
#define CALL(name) cu##name
#define CALL_V2(name) cu##name##_v2
#endif

typedef int Result;
typedef uint64_t Address;

enum { OK = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_SUPPORTED = 801 };
enum { VERSION = 13000, DEVICE = 0 };
enum { NO_MEMORY = 0, PINNED = 1, ON_DEVICE = 2, MANAGED = 3 }; /* kinds of memory, as cudaMemoryType has them */
enum { TO_DEVICE = 1, TO_HOST = 2, DEVICE_TO_DEVICE = 3, BY_ADDRESS = 4 }; /* cudaMemcpyKind */
enum { POINTER_ON_DEVICE_BITS = 33, POINTER_BEYOND_BITS = 44 }; /* the arena's addresses; no host memory is there */

/* Why a call cannot be made now, such as that it needs a context: 0 if it can. */
Result unready(void);
#define READY() do { Result why = unready(); if (why) return why; } while (0)

/* The number of this call, counted from 1: the clock of events. */
uint64_t tick(void);

/* A call's status as the library returns it. */
Result done(int status);

int ask(const char *name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t *back);
int attribute_of(int attribute); /* of the device */
void device_uuid(char *uuid);    /* 16 bytes */

/* An attribute of a launch, and what all of them ask for. */
typedef struct { int id; char pad[4]; union { char room[64]; unsigned cluster[3]; int number; } value; } LaunchAttribute;
typedef struct { unsigned cluster[3]; int cooperative; } Asked;
Asked asked_for(const LaunchAttribute *attributes, unsigned count, const char *call);

/* memory.c */
int on_device(const void *pointer);
int allocate(Address *address, size_t nbytes);
int map_memory(Address *address, size_t nbytes, int kind); /* that the program and kernels reach at one address */
int release(Address address);
int copy(void *to, const void *from, size_t nbytes, int kind);
int copy_box(char *to, size_t to_pitch, size_t to_height, const char *from, size_t from_pitch, size_t from_height,
             size_t width, size_t height, size_t depth, int kind);
int fill_rows(Address address, size_t pitch, unsigned value, size_t width, size_t rows, unsigned element);
int kind_of(const void *pointer, Address *start, size_t *nbytes); /* of memory, and where its allocation is */
#endif
