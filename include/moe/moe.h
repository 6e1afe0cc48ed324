/* moe.cpp from other languages: load, generate, score, look at the routing, train, save. A C
 * interface, so that it can be bound from anywhere and stays the same while the library changes;
 * moe.hpp puts C++ over it, docs/library.md says more.
 *
 * Every function that can fail returns a status; moe_last_error() then says what, where and what to
 * do, with options named as JSON has them, and what would have been handed out is NULL. Options are
 * JSON objects with the names of the command line ("top-k" or "top_k"), NULL for the defaults;
 * results that are more than numbers are JSON as the command line's --json prints it. Text is UTF-8
 * of a given length, or ends with a zero byte where no length is asked for. What a function hands
 * out through a `char**` or `int32_t**` is freed with moe_free(). Nothing is printed, and signals
 * are left alone.
 *
 * Threads: a handle, moe_model or moe_session, is used by one thread at a time, and not from a
 * callback of its own call. Different handles may be used at the same time: models, sessions of one
 * model, and a model beside its sessions. None waits for another's text; bits do not depend on what
 * runs beside. */
#ifndef MOE_MOE_H
#define MOE_MOE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MOE_API __attribute__((visibility("default")))
#else
#define MOE_API
#endif

typedef enum {
  MOE_OK = 0,
  MOE_FAILED = 1,
  MOE_USAGE = 2
} moe_status; /* the exit codes of the command */

typedef struct moe_model moe_model;     /* weights and tokenizer */
typedef struct moe_session moe_session; /* a text under way: its ids, and the keys and values that a
                                           model has computed for them */

MOE_API const char* moe_version(void);
/* Of the calling thread's last call that failed; "" before any did. */
MOE_API const char* moe_last_error(void);
MOE_API void moe_free(void* memory);

/* folder: a model folder, a .gguf file, or a name that `moe get` lists and has fetched. options:
 * "threads" (0: all cores), "dtype" of the products ("f32", "bf16", or "auto", the default: bf16
 * where most numbers of the matrices are bf16 or f16 and the machine multiplies bf16, else f32);
 * "memory" ("30G": what the process may take in all; default: what is free) and "pack-memory" (what
 * of it copies of the weights may take), as `moe generate` has them. A call that needs more fails
 * before it starts. */
MOE_API moe_status moe_load(moe_model** model, const char* folder, const char* options);
MOE_API void moe_close(moe_model* model); /* NULL is allowed */
/* options: "dtype" of the file. */
MOE_API moe_status moe_save(moe_model* model, const char* folder, const char* options);
/* What `moe inspect MODEL --json` prints. */
MOE_API moe_status moe_inspect(moe_model* model, char** json);
/* One of its whole numbers without reading JSON: "vocab", "context", "width", "layers",
 * "moe_layers", "experts", "slots"; -1 for any other name. */
MOE_API int64_t moe_size(const moe_model* model, const char* name);

/* Any bytes; ids that make no whole characters come back as the bytes they are. A zero byte stands
 * behind the text; bytes may be NULL. */
MOE_API moe_status moe_encode(moe_model* model, const char* text, size_t bytes, int32_t** ids,
                              size_t* count);
MOE_API moe_status moe_decode(moe_model* model, const int32_t* ids, size_t count, char** text,
                              size_t* bytes);

/* Called with text as soon as it is certain, whole characters only; a value other than 0 ends the
 * generation. */
typedef int (*moe_on_text)(void* user, const char* text, size_t bytes);
/* options: those of `moe generate`. json: what `moe generate --json` prints. on_text and json may
 * be NULL. */
MOE_API moe_status moe_generate(moe_model* model, const char* prompt, size_t bytes,
                                const char* options, moe_on_text on_text, void* user, char** json);

/* A session reads each id of a text once, however often it goes on with it. options: "capacity":
 * most ids that it holds (0: the model's context); "threads" (0: the model's); "cache-dtype",
 * "routing", "top-k-experts" of `moe generate`. It keeps the weights: its moe_model may be closed
 * before it. */
MOE_API moe_status moe_session_open(moe_session** session, moe_model* model, const char* options);
MOE_API void moe_session_close(moe_session* session); /* NULL is allowed */
/* How many ids it holds. */
MOE_API size_t moe_session_length(const moe_session* session);
/* Adds ids to the text. logits [rows, vocab]: of the id after each of the last `rows` of them; NULL
 * where rows is 0. */
MOE_API moe_status moe_session_prefill(moe_session* session, const int32_t* ids, size_t count,
                                       size_t rows, float* logits);
/* Adds a prompt, which may be empty where there is a text, and goes on from there as moe_generate()
 * does, with its options but for those of the session and as far as the capacity reaches. The ids
 * that were drawn, "ids" of the JSON, belong to the text from then on; "prompt_ids" are all those
 * before them. */
MOE_API moe_status moe_session_generate(moe_session* session, const char* prompt, size_t bytes,
                                        const char* options, moe_on_text on_text, void* user,
                                        char** json);
/* Drops what stands behind the first `length` ids. */
MOE_API moe_status moe_session_truncate(moe_session* session, size_t length);

/* options: "window", "windows", "routing", "top-k-experts" of `moe score`. logprobs: NULL, or
 * [count]: of each id given those before it in its window, NaN where there is none (the first of
 * each window, the dropped remainder). json: NULL, or what `moe score --json` prints. */
MOE_API moe_status moe_score(moe_model* model, const int32_t* ids, size_t count,
                             const char* options, float* logprobs, char** json);
/* logits [count, vocab]: of the id after each of one sequence. */
MOE_API moe_status moe_logits(moe_model* model, const int32_t* ids, size_t count, float* logits);
/* The routing of one sequence. experts, weights [moe_layers, count, slots] in choice order; expert
 * -1 and weight 0 where a choice was not sent. Sizes are "moe_layers" and "slots" of moe_inspect().
 */
MOE_API moe_status moe_routing(moe_model* model, const int32_t* ids, size_t count, int32_t* experts,
                               float* weights);

/* A recipe worked on given numbers. input: what `moe route --logits` reads, and in it "recipe",
 * "top_k", ... as its flags are called. */
MOE_API moe_status moe_route(const char* input, char** json);
/* What `moe recipes --json` prints. */
MOE_API moe_status moe_recipes(char** json);

/* The options that a function takes: "train", "load", "save", "generate", "session_open",
 * "session_generate", "score" or "route". json: a list of objects in the order of the command's
 * --help, from which a binding can make its own signatures: "name" ("top_k"); "also", other names
 * that are taken, such as those of Hugging Face; "kind": "toggle" and "boolean" (true or false),
 * "whole" and "natural" (an integer), "number", "text" and "path" (a string), "text_or_object",
 * "texts", "paths" and "wholes" (lists of them), "weighted" (an object of numbers); "help", a
 * phrase; "unit", perhaps ""; "group", a heading, perhaps ""; "default", null where there is none
 * that can be said beforehand; "values", all that a text can be, empty where that is no fixed
 * choice; "required". */
MOE_API moe_status moe_options(const char* function, char** json);

/* Called after each step with that step's line of metrics.jsonl; a value other than 0 saves and
 * ends the run. */
typedef int (*moe_on_step)(void* user, const char* json);
/* options: those of `moe train`, "data" and "out" among them, but for samples and the report, which
 * are the command's. json: what `moe train --json` prints but for "report"; "ce" is null where the
 * run in "out" was done already. on_step and json may be NULL. */
MOE_API moe_status moe_train(const char* options, moe_on_step on_step, void* user, char** json);

#ifdef __cplusplus
}
#endif

#endif
