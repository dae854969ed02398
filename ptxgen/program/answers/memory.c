/* Memory, for both libraries. */
#define _GNU_SOURCE
#include "library.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct Mapped { Address start; size_t nbytes; struct Mapped *next; } Mapped;
typedef struct Pool { unsigned reuse[3]; uint64_t threshold; unsigned access; } Pool;

enum { INVALID_PITCH = 12, INVALID_DIRECTION = 21 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Mapped *mapped;
static Pool default_pool = {.reuse = {1, 1, 1}, .access = 3}, *pool_of_device = &default_pool;

int on_device(const void *pointer) {
    Address address = (Address)pointer;
    return address >> POINTER_ON_DEVICE_BITS && !(address >> POINTER_BEYOND_BITS);
}

int allocate(Address *address, size_t nbytes) {
    uint64_t back[WIRE_WORDS];
    int status = ask("alloc", nbytes, 0, 0, 0, back);
    if (!status) *address = back[0];
    return status;
}

int map_memory(Address *address, size_t nbytes, int kind) {
    uint64_t back[WIRE_WORDS];
    char *path = NULL;
    if (!address || !nbytes) return INVALID_VALUE;
    int status = wire_call("map", (uint64_t[]){nbytes, (uint64_t)kind}, 2, NULL, 0, back, &path, 0);
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
    return status;
}

int release(Address address) {
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
    return status;
}

int copy(void *to, const void *from, size_t nbytes, int kind) {
    int target = on_device(to), source = on_device(from);
    if (kind < 0 || kind > BY_ADDRESS) return INVALID_DIRECTION;
    /* Pinned and managed memory is at addresses of the device, and stands for either side. */
    if ((kind == TO_DEVICE || kind == DEVICE_TO_DEVICE) && !target) return INVALID_VALUE;
    if ((kind == TO_HOST || kind == DEVICE_TO_DEVICE) && !source) return INVALID_VALUE;
    if (!nbytes) return ask("sync", 0, 0, 0, 0, NULL);
    if (target && source) return ask("copy", (Address)to, (Address)from, nbytes, 0, NULL);
    if (target) return wire_call("write", (uint64_t[]){(Address)to}, 1, from, nbytes, NULL, NULL, 0);
    if (source) return wire_call("read", (uint64_t[]){(Address)from, nbytes}, 2, NULL, 0, NULL, to, nbytes);
    int status = ask("sync", 0, 0, 0, 0, NULL);
    if (!status) memmove(to, from, nbytes);
    return status;
}

int copy_box(char *to, size_t to_pitch, size_t to_height, const char *from, size_t from_pitch, size_t from_height,
             size_t width, size_t height, size_t depth, int kind) {
    if (width > to_pitch || width > from_pitch) return height * depth > 1 ? INVALID_PITCH : copy(to, from, width, kind);
    for (size_t slice = 0; slice < depth; slice++)
        for (size_t row = 0; row < height; row++) {
            int status = copy(to + (slice * to_height + row) * to_pitch, from + (slice * from_height + row) * from_pitch, width, kind);
            if (status) return status;
        }
    return OK;
}

int fill_rows(Address address, size_t pitch, unsigned value, size_t width, size_t rows, unsigned element) {
    for (size_t row = 0; row < rows; row++) {
        int status = ask("fill", address + row * pitch, value, width * element, element, NULL);
        if (status) return status;
    }
    return OK;
}

int kind_of(const void *pointer, Address *start, size_t *nbytes) {
    uint64_t back[WIRE_WORDS] = {0};
    if (on_device(pointer) && !ask("memory_at", (Address)pointer, 0, 0, 0, back)) *start = back[1], *nbytes = back[2];
    return (int)back[0];
}

/* -------------------------------------------------------------------------------------------- pools */

/* A pool is where memory comes from, and all memory here is the device's: a pool holds nothing back. */

enum { THRESHOLD = 4 }; /* cudaMemPoolAttr: 1 to 3 are about reuse */

Result CALL(DeviceGetDefaultMemPool)(Pool **pool, int device) {
    if (device != DEVICE) return done(INVALID_DEVICE);
    *pool = &default_pool;
    return done(OK);
}
Result CALL(DeviceGetMemPool)(Pool **pool, int device) {
    if (device != DEVICE) return done(INVALID_DEVICE);
    *pool = pool_of_device;
    return done(OK);
}
Result CALL(DeviceSetMemPool)(int device, Pool *pool) {
    if (device != DEVICE) return done(INVALID_DEVICE);
    if (!pool) return done(INVALID_VALUE);
    pool_of_device = pool;
    return done(OK);
}

Result CALL(MemPoolCreate)(Pool **pool, const int *properties) {
    READY();
    if (!pool || !properties) return done(INVALID_VALUE);
    /* Kind of allocation, kind of handle for other processes, kind of location, its number. */
    if (properties[1]) wire_unanswered("MemPoolCreate for a pool that other processes share");
    if (properties[2] != 1 || properties[3] != DEVICE) wire_unanswered("MemPoolCreate for memory that is not the device's");
    *pool = malloc(sizeof **pool);
    **pool = (Pool){.reuse = {1, 1, 1}, .access = 3};
    return done(OK);
}
Result CALL(MemPoolDestroy)(Pool *pool) {
    READY();
    if (!pool || pool == &default_pool) return done(INVALID_VALUE);
    if (pool_of_device == pool) pool_of_device = &default_pool;
    free(pool);
    return done(OK);
}
Result CALL(MemPoolTrimTo)(Pool *pool, size_t least) { (void)least; READY(); return done(pool ? OK : INVALID_VALUE); }

Result CALL(MemPoolSetAttribute)(Pool *pool, int attribute, const void *value) {
    READY();
    if (!pool || !value || attribute < 1) return done(INVALID_VALUE);
    if (attribute > THRESHOLD) wire_unanswered("MemPoolSetAttribute for an attribute other than reuse and the threshold");
    if (attribute == THRESHOLD) pool->threshold = *(const uint64_t *)value;
    else pool->reuse[attribute - 1] = *(const unsigned *)value;
    return done(OK);
}
Result CALL(MemPoolGetAttribute)(Pool *pool, int attribute, void *value) {
    READY();
    if (!pool || !value || attribute < 1) return done(INVALID_VALUE);
    if (attribute > THRESHOLD) wire_unanswered("MemPoolGetAttribute for an attribute other than reuse and the threshold");
    if (attribute == THRESHOLD) *(uint64_t *)value = pool->threshold;
    else *(unsigned *)value = pool->reuse[attribute - 1];
    return done(OK);
}

/* The only device has access to its memory. */
Result CALL(MemPoolSetAccess)(Pool *pool, const int *access, size_t count) {
    READY();
    for (size_t n = 0; n < count; n++, access += 3) /* kind of location, its number, flags */
        if (access[0] != 1 || access[1] != DEVICE) return done(INVALID_DEVICE);
    return done(pool ? OK : INVALID_VALUE);
}
Result CALL(MemPoolGetAccess)(unsigned *flags, Pool *pool, const int *location) {
    READY();
    if (!pool || !flags || location[1] != DEVICE) return done(INVALID_VALUE);
    *flags = pool->access;
    return done(OK);
}
