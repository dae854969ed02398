/* Streams and events, for both libraries. A stream is a queue in order whose work is done at once. */
#include "library.h"
#include <stdlib.h>

typedef struct { unsigned flags; int priority; uint64_t number; } Stream;
typedef struct { uint64_t recorded; } Event;

enum { LAST_NAMED = 2 }; /* streams 0, 1 and 2 are the default ones */

static uint64_t streams = LAST_NAMED;

static uint64_t number_of(const Stream *stream) {
    return (uintptr_t)stream <= LAST_NAMED ? (uintptr_t)stream : stream->number;
}
static int is_default(const Stream *stream) { return (uintptr_t)stream <= LAST_NAMED; }
static Result finished(void) { READY(); return done(ask("sync", 0, 0, 0, 0, NULL)); }

Result CALL(StreamCreateWithPriority)(Stream **stream, unsigned flags, int priority) {
    READY();
    if (!stream) return done(INVALID_VALUE);
    *stream = malloc(sizeof **stream);
    (void)priority; /* there is one priority */
    **stream = (Stream){flags, 0, __atomic_add_fetch(&streams, 1, __ATOMIC_RELAXED)};
    return done(OK);
}
#ifdef RUNTIME
Result cudaStreamCreate(Stream **stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
Result cudaStreamCreateWithFlags(Stream **stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
Result cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = *greatest = 0; return done(OK); }
#else
Result cuStreamCreate(Stream **stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
Result cuCtxGetStreamPriorityRange(int *least, int *greatest) { READY(); *least = *greatest = 0; return done(OK); }
#endif
Result CALL_V2(StreamDestroy)(Stream *stream) {
    READY();
    if (is_default(stream)) return done(INVALID_HANDLE);
    free(stream);
    return done(OK);
}
Result CALL(StreamSynchronize)(Stream *stream) { (void)stream; return finished(); }
Result CALL(StreamQuery)(Stream *stream) { (void)stream; return finished(); }
Result CALL(StreamWaitEvent)(Stream *stream, Event *event, unsigned flags) { (void)stream, (void)flags; READY(); return done(event ? OK : INVALID_HANDLE); }
Result CALL(StreamGetFlags)(Stream *stream, unsigned *flags) { READY(); *flags = is_default(stream) ? 0 : stream->flags; return done(OK); }
Result CALL(StreamGetPriority)(Stream *stream, int *priority) { READY(); *priority = is_default(stream) ? 0 : stream->priority; return done(OK); }
Result CALL(StreamGetId)(Stream *stream, unsigned long long *number) { READY(); *number = number_of(stream); return done(OK); }
Result CALL(StreamGetDevice)(Stream *stream, int *device) { (void)stream; READY(); *device = DEVICE; return done(OK); }
Result CALL(StreamAttachMemAsync)(Stream *stream, void *memory, size_t nbytes, unsigned flags) { (void)stream, (void)memory, (void)nbytes, (void)flags; READY(); return done(OK); } /* a hint */

/* No stream is ever captured: the calls that begin it are not answered. */
Result CALL(StreamIsCapturing)(Stream *stream, int *state) { (void)stream; READY(); *state = 0; return done(OK); }
Result CALL(ThreadExchangeStreamCaptureMode)(int *mode) {
    static __thread int current; /* global */
    int before = current;
    current = *mode, *mode = before;
    return done(OK);
}
#ifdef RUNTIME
Result cudaStreamGetCaptureInfo(Stream *stream, int *state) { return cudaStreamIsCapturing(stream, state); }
#else
/* The further results of all versions are for a stream that is captured. */
Result cuStreamGetCaptureInfo(Stream *stream, int *state) { return cuStreamIsCapturing(stream, state); }
Result cuStreamGetCaptureInfo_v2(Stream *stream, int *state) { return cuStreamIsCapturing(stream, state); }
Result cuStreamGetCaptureInfo_v3(Stream *stream, int *state) { return cuStreamIsCapturing(stream, state); }
#endif

Result CALL(LaunchHostFunc)(Stream *stream, void (*function)(void *), void *data) { (void)stream; READY(); function(data); return done(OK); }
Result CALL(StreamAddCallback)(Stream *stream, void (*function)(Stream *, Result, void *), void *data, unsigned flags) {
    READY();
    if (flags) return done(INVALID_VALUE);
    function(stream, ask("sync", 0, 0, 0, 0, NULL), data);
    return done(OK);
}

#ifdef RUNTIME
Result cudaEventCreateWithFlags(Event **event, unsigned flags) { (void)flags; *event = calloc(1, sizeof **event); return done(OK); }
Result cudaEventCreate(Event **event) { return cudaEventCreateWithFlags(event, 0); }
#else
Result cuEventCreate(Event **event, unsigned flags) { (void)flags; READY(); *event = calloc(1, sizeof **event); return done(OK); }
#endif
Result CALL_V2(EventDestroy)(Event *event) { READY(); free(event); return done(event ? OK : INVALID_HANDLE); }
Result CALL(EventRecord)(Event *event, Stream *stream) {
    (void)stream;
    READY();
    if (!event) return done(INVALID_HANDLE);
    event->recorded = tick();
    return done(OK);
}
Result CALL(EventRecordWithFlags)(Event *event, Stream *stream, unsigned flags) { (void)flags; return CALL(EventRecord)(event, stream); }
Result CALL(EventSynchronize)(Event *event) { return event ? finished() : done(INVALID_HANDLE); }
Result CALL(EventQuery)(Event *event) { return CALL(EventSynchronize)(event); }
Result CALL_V2(EventElapsedTime)(float *milliseconds, Event *start, Event *end) {
    READY();
    if (!start || !end || !start->recorded || !end->recorded) return done(INVALID_HANDLE);
    *milliseconds = (float)((double)end->recorded - (double)start->recorded); /* calls, not time */
    return done(OK);
}
