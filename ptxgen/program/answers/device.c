/* The device, for both libraries. */
#include "library.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PEER_ACCESS_UNSUPPORTED = 217, UUID_BYTES = 16, CONNECTION_BYTES = 13 };

static const char connection[CONNECTION_BYTES] = "0000:00:00.0"; /* a PCI address: that of no device */

int ask(const char *name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t *back) {
    uint64_t numbers[] = {a, b, c, d};
    return wire_call(name, numbers, 4, NULL, 0, back, NULL, 0);
}

int attribute_of(int attribute) {
    uint64_t back[WIRE_WORDS];
    ask("attribute", (uint64_t)attribute, 0, 0, 0, back);
    return (int)back[0];
}

void device_uuid(char *uuid) { memcpy(uuid, "ptxgen interpret", UUID_BYTES); }

Result CALL(DeviceGetPCIBusId)(char *text, int room, int device) {
    if (device != DEVICE) return done(INVALID_DEVICE);
    if (!text || room < CONNECTION_BYTES) return done(INVALID_VALUE);
    strcpy(text, connection);
    return done(OK);
}
Result CALL(DeviceGetByPCIBusId)(int *device, const char *text) {
    if (!device || !text) return done(INVALID_VALUE);
    *device = DEVICE;
    return done(strcmp(text, connection) ? INVALID_DEVICE : OK);
}

/* There is one device, which has no peer. */
Result CALL(DeviceCanAccessPeer)(int *can, int device, int peer) {
    *can = 0;
    return done(device || peer ? INVALID_DEVICE : OK);
}
Result CALL(DeviceGetP2PAttribute)(int *value, int attribute, int from, int to) { (void)value, (void)attribute, (void)from, (void)to; return done(INVALID_DEVICE); }
#ifdef RUNTIME
Result cudaDeviceEnablePeerAccess(int peer, unsigned flags) { (void)flags; return done(peer ? INVALID_DEVICE : PEER_ACCESS_UNSUPPORTED); }
Result cudaDeviceDisablePeerAccess(int peer) { return done(peer ? INVALID_DEVICE : PEER_ACCESS_UNSUPPORTED); }
#else
Result cuCtxEnablePeerAccess(void *peer, unsigned flags) { (void)peer, (void)flags; return done(PEER_ACCESS_UNSUPPORTED); }
Result cuCtxDisablePeerAccess(void *peer) { (void)peer; return done(PEER_ACCESS_UNSUPPORTED); }
#endif

/* Limits: what a program has set, else what CUDA has. The interpreter's stacks and heap grow as they must. */
enum { LIMITS = 7 };
static size_t limits[LIMITS] = {1024, 1 << 20, 8 << 20, 2, 2048, 64, 0};

#ifdef RUNTIME
Result cudaDeviceGetLimit(size_t *value, int limit) {
#else
Result cuCtxGetLimit(size_t *value, int limit) {
    READY();
#endif
    if (!value || limit < 0 || limit >= LIMITS) return done(INVALID_VALUE);
    *value = limits[limit];
    return done(OK);
}
#ifdef RUNTIME
Result cudaDeviceSetLimit(int limit, size_t value) {
#else
Result cuCtxSetLimit(int limit, size_t value) {
    READY();
#endif
    if (limit < 0 || limit >= LIMITS) return done(INVALID_VALUE);
    limits[limit] = value;
    return done(OK);
}
Result CALL(CtxResetPersistingL2Cache)(void) { READY(); return done(OK); }
Result CALL(ProfilerStart)(void) { READY(); return done(OK); } /* there is no profiler */
Result CALL(ProfilerStop)(void) { READY(); return done(OK); }

/* ---------------------------------------------------------------------------------------- launches */

Asked asked_for(const LaunchAttribute *attributes, unsigned count, const char *call) {
    /* cudaLaunchAttributeID */
    enum { COOPERATIVE = 2, CLUSTER = 4, PROGRAMMATIC_EVENT = 7, PREFERRED_CLUSTER = 11, UPDATABLE = 13, CARVEOUT = 14 };
    Asked found = {{1, 1, 1}, 0};
    for (unsigned n = 0; n < count; n++) {
        const LaunchAttribute *given = &attributes[n];
        if (given->id == COOPERATIVE) found.cooperative = given->value.number;
        else if (given->id == CLUSTER) for (int axis = 0; axis < 3; axis++) found.cluster[axis] = given->value.cluster[axis];
        /* The others are hints of caches, order and priority, which bind nothing where each launch ends at once; but
           not events, nodes of graphs and another size of clusters. */
        else if (given->id > CARVEOUT || (given->id >= PREFERRED_CLUSTER && given->id <= UPDATABLE) || given->id == PROGRAMMATIC_EVENT)
            wire_unanswered(call);
    }
    return found;
}
