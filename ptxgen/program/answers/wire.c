#define _GNU_SOURCE
#include "wire.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define NAME_BYTES 32
#define STOP (-1)

typedef struct { char name[NAME_BYTES]; uint64_t numbers[WIRE_WORDS]; uint64_t nbytes; } Request;
typedef struct { int64_t status; uint64_t numbers[WIRE_WORDS]; uint64_t nbytes; } Reply;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int channel = -1;
static pid_t owner; /* a forked process has a connection of its own */

static void stop(const char *why) {
    fflush(stdout);
    if (why) fprintf(stderr, "ptxgen: %s\n", why);
    _exit(1);
}

static void move(void *data, size_t nbytes, int sends) {
    char *at = data;
    while (nbytes) {
        ssize_t done = sends ? send(channel, at, nbytes, MSG_NOSIGNAL) : recv(channel, at, nbytes, 0);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) stop("the interpreter's process has ended");
        at += done;
        nbytes -= (size_t)done;
    }
}

static void open_channel(void) {
    const char *path = getenv("PTXGEN_PROGRAM_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!path || strlen(path) >= sizeof address.sun_path)
        stop("this CUDA library works only under ptxgen run-program");
    strcpy(address.sun_path, path);
    channel = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (channel < 0 || connect(channel, (struct sockaddr *)&address, sizeof address))
        stop("cannot reach the interpreter's process");
    owner = getpid();
}

int wire_call(const char *name, const uint64_t *numbers, int count, const void *bytes, size_t nbytes,
              uint64_t *back, void *out, size_t room) {
    Request request = {.nbytes = nbytes};
    Reply reply;
    strncpy(request.name, name, NAME_BYTES - 1);
    if (count) memcpy(request.numbers, numbers, (size_t)count * sizeof *numbers);
    pthread_mutex_lock(&lock);
    if (channel < 0 || owner != getpid()) open_channel();
    move(&request, sizeof request, 1);
    if (nbytes) move((void *)bytes, nbytes, 1);
    move(&reply, sizeof reply, 0);
    if (reply.status == STOP) stop(NULL);
    if (back) memcpy(back, reply.numbers, sizeof reply.numbers);
    void *target = out;
    if (out && !room) target = *(void **)out = calloc(reply.nbytes + 1, 1);
    if (reply.nbytes && (!target || (room && reply.nbytes > room))) stop("a reply does not fit");
    if (reply.nbytes) move(target, reply.nbytes, 0);
    pthread_mutex_unlock(&lock);
    return (int)reply.status;
}

void wire_refused(const char *why) {
    wire_call("refused", NULL, 0, why, strlen(why), NULL, NULL, 0);
    stop(NULL);
}

void wire_unanswered(const char *name) {
    wire_call("unanswered", NULL, 0, name, strlen(name), NULL, NULL, 0);
    stop(NULL);
}
