/* Handlers of XLA's custom calls that launch what Python has bound, without Python.
 *
 * A site is one custom call. Python's handler runs a call of new buffers, and keeps what it launched for them here: a
 * kernel with its parameters, or a function of a CPU with its words. A call of the same buffers on the same stream is
 * launched from here; any other, and whatever goes wrong, is Python's. A signal may cut Python's handler off anywhere:
 * what it has not answered is an error, and the signal comes again after the call. The interface is XLA's, of
 * `xla/ffi/api/c_api.h`. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

enum { SITES = 512, CALLS = 256, BUFFERS = 16, SLOT = 128 /* bytes of a parameter, as a tensor map is aligned and has */ };

typedef struct {
    unsigned id;
    char pad[4];
    union { int value; char rest[64]; };
} attribute_t; /* CUlaunchAttribute */

typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    attribute_t *attributes;
    unsigned count;
} config_t; /* CUlaunchConfig */

typedef int (*launch_t)(const config_t *, void *function, void **parameters, void **extra);
typedef int (*capturing_t)(void *stream, int *capturing);

typedef struct {
    XLA_FFI_Error *error;
    int64_t done;
} answer_t;

typedef struct call {
    void *buffers[BUFFERS], *stream;
    void *function;
    config_t config;
    size_t size; /* bytes of words of a CPU's function, 0 of a kernel */
    int parameters;
    char *words; /* a slot for each parameter */
    int inside; /* threads that are in a CPU's function */
    struct call *next; /* of those whose place is another's */
} call_t;

typedef struct {
    pthread_mutex_t lock;
    void (*python)(XLA_FFI_CallFrame *, answer_t *);
    void (*interrupt)(void);
    launch_t launch;
    capturing_t capturing;
    int arguments, buffers, used;
    call_t *calls[CALLS], *replaced;
} site_t;

static site_t sites[SITES];
static int site_count;
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static unsigned place_of(void *const *buffers, int count, void *stream)
{
    uint64_t found = (uint64_t)stream;
    for (int at = 0; at < count; at++)
        found = (found ^ (uint64_t)buffers[at] >> 4) * 0x9e3779b97f4a7c15u;
    return found >> 56;
}

/* Run a CPU's function without the lock, which others need not wait for. */
static void run(site_t *site, call_t *call)
{
    int64_t words[call->size / 8];
    memcpy(words, call->words, call->size);
    call->inside++;
    pthread_mutex_unlock(&site->lock);
    ((void (*)(void *))call->function)(words);
    pthread_mutex_lock(&site->lock);
    call->inside--;
}

/* Whether a kernel was launched. */
static int launch(site_t *site, call_t *call)
{
    attribute_t follows = {.id = 6, .value = 1}; /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
    void *parameters[call->parameters];
    for (int at = 0; at < call->parameters; at++)
        parameters[at] = call->words + at * SLOT;
    call->config.attributes = &follows;
    call->config.stream = call->stream;
    return site->launch(&call->config, call->function, parameters, NULL) == 0;
}

static XLA_FFI_Error *ask_python(site_t *site, XLA_FFI_CallFrame *frame)
{
    answer_t answer = {NULL, 0};
    site->python(frame, &answer);
    if (!answer.done) {
        XLA_FFI_Error_Create_Args asked = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, NULL, "interrupted",
                                           XLA_FFI_Error_Code_CANCELLED};
        site->interrupt();
        return frame->api->XLA_FFI_Error_Create(&asked);
    }
    return answer.error;
}

static XLA_FFI_Error *handle(site_t *site, XLA_FFI_CallFrame *frame)
{
    void *buffers[BUFFERS], *stream = NULL;
    int done = 0;
    if (frame->extension_start != NULL || frame->stage != XLA_FFI_ExecutionStage_EXECUTE || !site->used)
        return ask_python(site, frame);
    for (int at = 0; at < site->buffers; at++) {
        void **from = at < site->arguments ? frame->args.args + at : frame->rets.rets + at - site->arguments;
        buffers[at] = ((XLA_FFI_Buffer *)*from)->data;
    }
    if (site->launch != NULL) {
        XLA_FFI_Stream_Get_Args asked = {XLA_FFI_Stream_Get_Args_STRUCT_SIZE, NULL, frame->ctx, NULL};
        if (frame->api->XLA_FFI_Stream_Get(&asked) != NULL)
            return ask_python(site, frame);
        stream = asked.stream;
        int capturing = 0;
        if (site->capturing(stream, &capturing) != 0 || capturing)
            return ask_python(site, frame); /* it keeps what a graph needs */
    }
    pthread_mutex_lock(&site->lock);
    call_t *call = site->calls[place_of(buffers, site->buffers, stream)];
    if (call != NULL && call->stream == stream && !memcmp(call->buffers, buffers, sizeof(void *) * site->buffers)) {
        if (call->size == 0)
            done = launch(site, call);
        else {
            run(site, call);
            done = 1;
        }
    }
    pthread_mutex_unlock(&site->lock);
    return done ? NULL : ask_python(site, frame);
}

#define ONE(n) static XLA_FFI_Error *handler_##n(XLA_FFI_CallFrame *frame) { return handle(&sites[0x##n], frame); }
#define SIXTEEN(n) ONE(n##0) ONE(n##1) ONE(n##2) ONE(n##3) ONE(n##4) ONE(n##5) ONE(n##6) ONE(n##7)                            \
    ONE(n##8) ONE(n##9) ONE(n##a) ONE(n##b) ONE(n##c) ONE(n##d) ONE(n##e) ONE(n##f)
#define MANY(n) SIXTEEN(n##0) SIXTEEN(n##1) SIXTEEN(n##2) SIXTEEN(n##3) SIXTEEN(n##4) SIXTEEN(n##5) SIXTEEN(n##6) SIXTEEN(n##7)             \
    SIXTEEN(n##8) SIXTEEN(n##9) SIXTEEN(n##a) SIXTEEN(n##b) SIXTEEN(n##c) SIXTEEN(n##d) SIXTEEN(n##e) SIXTEEN(n##f)
MANY(0)
MANY(1)
#undef ONE
#define ONE(n) handler_##n,
static XLA_FFI_Handler *const handlers[SITES] = {MANY(0) MANY(1)};

/* The number of a new site, -1 where there are no more. `interrupt`: PyErr_SetInterrupt; `launch`: cuLaunchKernelEx, NULL
 * for a CPU; `capturing`: cuStreamIsCapturing. */
int weft_site(void *python, void *interrupt, void *launch, void *capturing, int arguments, int results)
{
    int found = -1;
    pthread_mutex_lock(&making);
    if (site_count < SITES && arguments + results <= BUFFERS) {
        site_t *site = &sites[found = site_count++];
        pthread_mutex_init(&site->lock, NULL);
        site->python = (void (*)(XLA_FFI_CallFrame *, answer_t *))python;
        site->interrupt = (void (*)(void))interrupt;
        site->launch = (launch_t)launch;
        site->capturing = (capturing_t)capturing;
        site->arguments = arguments;
        site->buffers = arguments + results;
    }
    pthread_mutex_unlock(&making);
    return found;
}

void *weft_handler(int site) { return (void *)handlers[site]; }

/* Launch this from now on for these buffers: the kept call; NULL without memory. It is until `weft_gone` returns it. Of a
 * kernel `words` are its parameters, of so many bytes each; of a function of a CPU `words` are all that it is given, and
 * `sizes` has their bytes. */
void *weft_keep(int number, void *const *buffers, void *stream, void *function, const unsigned *grid, unsigned threads,
                unsigned shared, int follows, void *const *words, const int *sizes, int count)
{
    site_t *site = &sites[number];
    call_t *call = calloc(1, sizeof *call);
    size_t bytes = site->launch ? (size_t)count * SLOT : (size_t)sizes[0];
    char *held = NULL;
    if (call == NULL || posix_memalign((void **)&held, SLOT, bytes)) {
        free(call);
        return NULL;
    }
    memcpy(call->buffers, buffers, sizeof(void *) * site->buffers);
    call->stream = stream;
    call->function = function;
    call->words = held;
    if (site->launch == NULL)
        memcpy(held, words[0], call->size = bytes);
    else {
        memcpy(call->config.grid, grid, sizeof call->config.grid);
        call->config.block[0] = threads;
        call->config.block[1] = call->config.block[2] = 1;
        call->config.shared = shared;
        call->config.count = follows != 0;
        call->parameters = count;
        for (int at = 0; at < count; at++)
            memcpy(held + at * SLOT, words[at], sizes[at]);
    }
    pthread_mutex_lock(&site->lock);
    call_t **place = &site->calls[place_of(call->buffers, site->buffers, stream)];
    if (*place != NULL) {
        (*place)->next = site->replaced;
        site->replaced = *place;
    }
    *place = call;
    site->used = 1;
    pthread_mutex_unlock(&site->lock);
    return call;
}

/* A kept call whose place is another's and which no thread is in, freed; NULL where there are no more. */
void *weft_gone(int number)
{
    site_t *site = &sites[number];
    pthread_mutex_lock(&site->lock);
    call_t **from = &site->replaced;
    while (*from != NULL && (*from)->inside > 0)
        from = &(*from)->next;
    call_t *call = *from;
    if (call != NULL) {
        *from = call->next;
        free(call->words);
        free(call);
    }
    pthread_mutex_unlock(&site->lock);
    return call;
}
