/* Names and texts of the runtime's error codes. */
#include <stddef.h>

static const struct { int code; const char *name, *text; } errors[] = {
#define ERROR(code, name, text) {code, name, text},
#include "errors.inc"
};

static const char *error_text(int code, int as_name) {
    for (size_t n = 0; n < sizeof errors / sizeof *errors; n++)
        if (errors[n].code == code) return as_name ? errors[n].name : errors[n].text;
    return "unrecognized error code";
}

const char *cudaGetErrorString(int code) { return error_text(code, 0); }
const char *cudaGetErrorName(int code) { return error_text(code, 1); }
