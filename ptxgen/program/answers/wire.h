/* Requests to the process that has the device: its memory and the interpreter. */
#ifndef WIRE_H
#define WIRE_H
#include <stddef.h>
#include <stdint.h>

#define WIRE_WORDS 12

/* Sends the call `name` with numbers and `nbytes` bytes; returns its CUDA error code. `back` gets the
   numbers of the reply (WIRE_WORDS of them) unless it is NULL. The bytes of the reply go to `out`, at
   most `room`; with room == 0 they go to *out, which the caller frees. Ends the program if the other
   side asks for it, or is gone. */
int wire_call(const char *name, const uint64_t *numbers, int count, const void *bytes, size_t nbytes,
              uint64_t *back, void *out, size_t room);

/* Ends the program because it made a call that is not answered. */
void wire_unanswered(const char *name);

/* Ends the program for the reason that a sentence gives. */
void wire_refused(const char *why);

/* A version of a call: programs that ask for `name` get `function` since that version of CUDA. The table is
   generated, and ends with a row without a name. */
typedef struct { const char *name; int since; void (*function)(void); } WireVersion;
extern const WireVersion wire_versions[];
#endif
