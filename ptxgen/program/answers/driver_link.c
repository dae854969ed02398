/* The driver's linker, whose result is a module. It has one input, which is PTX, and gives that back. */
#include "driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PTX = 1 }; /* CUjitInputType */

typedef struct { char *text; size_t nbytes; } Link;

Result cuLinkCreate_v2(unsigned count, int *options, void **values, Link **state) {
    (void)count, (void)options, (void)values;
    READY();
    if (!state) return done(INVALID_VALUE);
    *state = calloc(1, sizeof **state);
    return done(OK);
}

Result cuLinkAddData_v2(Link *state, int kind, const void *data, size_t nbytes, const char *name, unsigned count, int *options, void **values) {
    (void)name, (void)count, (void)options, (void)values;
    READY();
    if (!state || !data) return done(INVALID_VALUE);
    if (kind != PTX) wire_unanswered("cuLinkAddData for an input that is not PTX");
    if (state->text) wire_unanswered("cuLinkAddData for a second input, code that is linked on the device");
    state->text = calloc(1, nbytes + 1);
    memcpy(state->text, data, nbytes);
    state->nbytes = strlen(state->text) + 1;
    return done(OK);
}

Result cuLinkAddFile_v2(Link *state, int kind, const char *path, unsigned count, int *options, void **values) {
    READY();
    size_t nbytes;
    char *data = file_at(path, &nbytes);
    if (!data) return done(FILE_NOT_FOUND);
    Result status = cuLinkAddData_v2(state, kind, data, nbytes, path, count, options, values);
    free(data);
    return status;
}

Result cuLinkComplete(Link *state, void **image, size_t *nbytes) {
    READY();
    if (!state || !state->text || !image) return done(INVALID_VALUE);
    *image = state->text;
    if (nbytes) *nbytes = state->nbytes;
    return done(OK);
}

Result cuLinkDestroy(Link *state) {
    READY();
    if (!state) return done(INVALID_VALUE);
    free(state->text);
    free(state);
    return done(OK);
}
