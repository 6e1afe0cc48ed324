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

/* folder: a model folder, a .gguf file, or a name that is here already: one that `moe get` has
 * fetched, or OWNER/NAME in Hugging Face's cache (docs/model-folder.md, "Names"). options:
 * "threads" (0: all cores), "dtype" of the products ("f32", "bf16", or "auto", the default: bf16
 * where most numbers of the matrices are bf16 or f16 and the machine multiplies bf16, else f32);
 * "adapter" (a folder of a low-rank adapter that the model is run with); "memory" ("30G": what the
 * process may take in all; default: what is free) and "pack-memory" (what of it copies of the
 * weights may take), as `moe generate` has them. A call that needs more fails before it starts. */
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
/* options: those of `moe generate`; a model that "draft" names is opened once, and kept until this
 * one is closed. json: what `moe generate --json` prints. on_text and json may be NULL. */
MOE_API moe_status moe_generate(moe_model* model, const char* prompt, size_t bytes,
                                const char* options, moe_on_text on_text, void* user, char** json);

/* A session reads each id of a text once, however often it goes on with it. options: "capacity":
 * most ids that it holds (0: the model's context); "threads" (0: the model's); "cache-dtype",
 * "routing", "top-k-experts", "draft", "draft-tokens", "draft-min-p" of `moe generate`. It keeps
 * the weights: its moe_model may be closed before it. */
MOE_API moe_status moe_session_open(moe_session** session, moe_model* model, const char* options);
MOE_API void moe_session_close(moe_session* session); /* NULL is allowed */
/* How many ids it holds. */
MOE_API size_t moe_session_length(const moe_session* session);
/* Adds ids to the text. logits [rows, vocab]: of the id after each of the last `rows` of them, of
 * no meaning after a failure; NULL where rows is 0. */
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

/* ---- one MoE layer, for programs that have the rest of the model ------------------------------
 *
 * Routing and experts over arrays in the caller's memory, with their gradients: what moe_cpp.torch
 * is made of. A call reads and writes the arrays that it is given and keeps none of them; what a
 * layer keeps are copies of its weights in the layout of the products, each made when tokens first
 * meet the expert and again when moe_layer_bind() told of new numbers. They take at most half of
 * the memory that is free; what finds no room is copied at each use. A backward is given what its
 * forward was given, and routes again: the same seed draws the same.
 *
 * Sizes: N tokens, D hidden_size, F moe_intermediate_size, E experts, K slots a token (top_k, and E
 * where experts choose). */
typedef struct moe_layer moe_layer;
typedef enum { MOE_F32 = 0, MOE_BF16 = 1, MOE_I32 = 2, MOE_I64 = 3 } moe_dtype;
/* Numbers by name, which each function lists. They lie without gaps, but for the experts of a bank,
 * which may lie apart, and whole numbers, which may lie anyhow. */
typedef struct {
  const char* name;
  void* data;
  moe_dtype dtype;
  int rank;          /* 1 to 3 */
  int64_t shape[3];  /* of the first `rank` dimensions */
  int64_t stride[3]; /* in elements */
} moe_array;

/* options: those of moe_route() for the recipe, "hidden_size" (0: logits are routed),
 * "moe_intermediate_size" (0: no experts), "activation", "gated", "bias", "threads". A layer may be
 * used by several threads, one call after the other; different layers at the same time. After
 * fork() the child's calls use one thread. */
MOE_API moe_status moe_layer_open(moe_layer** layer, const char* options);
MOE_API void moe_layer_close(moe_layer* layer); /* NULL is allowed */
/* json: "recipe", "experts", "top_k", "slots", "slots_eval", "params" (name, shape, whether it is
 * trained), "losses" (those the recipe has, with its coefficients), "sum_over_layers" (the
 * coefficients are of a sum over a model's layers, else of a mean), "loss_order", "needs_ids",
 * "running_balance" (the balance loss is over the optimizer step so far: "step_counts" are the
 * sums of earlier calls' "balance_counts"), and the recipe's shared experts. */
MOE_API moe_status moe_layer_inspect(moe_layer* layer, char** json);
MOE_API moe_status moe_layer_threads(moe_layer* layer, int threads); /* 0: all cores */
/* Says where parameters lie, by the names of moe_layer_inspect(), until they are bound again; to be
 * called again when their numbers have changed. Banks [E,F,D] ("experts.gate.weight",
 * "experts.up.weight") and [E,D,F] ("experts.down.weight") are f32 or bf16, everything else f32.
 * "experts.gate_up.weight" [E,2F,D] stands for gate and up, the gate's rows first. A call that is
 * refused binds none. */
MOE_API moe_status moe_layer_bind(moe_layer* layer, const moe_array* arrays, size_t count);
/* Reads "x" [N,D] (f32 or bf16) or "logits" [N,E] f32, or for hash routing "ids" [N]; where they
 * are given "bounds" [S+1] of sequences (default: one), "recorded" [N,K] choices to take instead
 * (-1: none; -2 - e: expert e, not sent) and "step_counts" [E] for a balance loss over the
 * optimizer step. Writes "experts" [N,K] i32 (-1: none), "weights" [N,K] f32 (0 where a choice was
 * not sent), and where they are given "sent" [N,K] i32 (experts, -1 where not sent), "losses" [6]
 * f32 in the order of "loss_order", "counts" and "balance_counts" [E] i32, "cutoff" [E] f32 and
 * "logits_out" [N,E] f32. training: 0 routes as in evaluation. seed: of what the recipe draws; 0:
 * nothing is drawn. */
MOE_API moe_status moe_layer_route(moe_layer* layer, const moe_array* arrays, size_t count,
                                   int training, uint64_t seed);
/* Reads also "dweights" [N,K] and "dlosses" [6] f32; writes "dx" [N,D] or "dlogits" [N,E] f32, and
 * "grad." and its name, f32, of each parameter that is given one. */
MOE_API moe_status moe_layer_route_backward(moe_layer* layer, const moe_array* arrays, size_t count,
                                            int training, uint64_t seed);
/* y = sum over a token's experts of weight * FFN(x). Reads "x" [N,D] f32 or bf16, which products
 * are then computed in, "experts" [N,K] i32 or i64 (not sent: less than 0, or E) and "weights"
 * [N,K] f32; neither of the two where the layer has one expert, which then takes every token.
 * Writes "y" [N,D] f32 or bf16, and for a backward "gate" and "up" [N K,F] in x's dtype. */
MOE_API moe_status moe_layer_experts(moe_layer* layer, const moe_array* arrays, size_t count);
/* Reads all that and "dy" [N,D] in x's dtype; writes "dx" [N,D] f32 or bf16, and where they are
 * given "dweights" [N,K] f32 (0 where not sent) and the parameters' "grad.", f32. */
MOE_API moe_status moe_layer_experts_backward(moe_layer* layer, const moe_array* arrays,
                                              size_t count);
/* One product of the experts, for whoever has an activation of their own between two of them: "out"
 * [R,F] = "rows" [R,D] times each expert's "experts.up.weight", "offsets" [E+1] saying which rows
 * meet which expert. Its backward reads also "dout" [R,F] and writes "drows" [R,D] and
 * "grad.experts.up.weight". */
MOE_API moe_status moe_layer_products(moe_layer* layer, const moe_array* arrays, size_t count);
MOE_API moe_status moe_layer_products_backward(moe_layer* layer, const moe_array* arrays,
                                               size_t count);
/* After an optimizer step: moves the bound "router.bias" against "counts" [E] (sums over the step's
 * calls) and "router.threshold" towards "cutoff" [E] f32 (their mean). */
MOE_API moe_status moe_layer_end_step(moe_layer* layer, const moe_array* arrays, size_t count);

/* ---- what stands around the experts ------------------------------------------------------------
 *
 * Attention and norms over arrays as above, with their gradients; nothing is kept between calls.
 * threads: 0 for all cores. */
typedef struct {
  int heads, kv_heads; /* H queries a token, G keys and values, a divisor of H */
  float scale;         /* of the products of queries and keys, before the softmax */
  int64_t window;      /* a token sees so many, itself the last; 0: all before it */
  float cap;           /* scores s become cap tanh(s / cap); 0: they stay */
} moe_attention_options;
/* Causal attention within each sequence: "o" [N,H*V] = softmax(scale q k^T) v. Reads "q" [N,H*C],
 * "k" [M,G*C], "v" [M,G*V], f32 or bf16, and where they are given "bounds" [S+1] of the sequences'
 * queries (default: one sequence) and "key_bounds" [S+1] of their keys (default: the same), of
 * which the last are the queries' own: keys before them are of tokens that were read earlier.
 * Writes "o" and for a backward "lse" [N,H] f32. */
MOE_API moe_status moe_attention(const moe_array* arrays, size_t count,
                                 const moe_attention_options* options, int threads);
/* Of sequences that are whole, M = N, with the same bounds. Reads all that and "do" [N,H*V]; writes
 * "dq", "dk" and "dv". */
MOE_API moe_status moe_attention_backward(const moe_array* arrays, size_t count,
                                          const moe_attention_options* options, int threads);
/* "y" [N,D] = x / sqrt(mean(x^2) + eps) * (offset + weight), and "rstd" [N] f32, 1 over that root,
 * for a backward. Reads "x" [N,D] and where it is given "weight" [D] f32 (default: 1 - offset). x
 * and y are f32 or bf16 each. */
MOE_API moe_status moe_rms_norm(const moe_array* arrays, size_t count, float eps, float offset,
                                int threads);
/* Reads "x", "weight", "rstd" and "dy" [N,D]; writes "dx" [N,D] and where it is given "dweight"
 * [D] f32. */
MOE_API moe_status moe_rms_norm_backward(const moe_array* arrays, size_t count, float offset,
                                         int threads);

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
 * run in "out" was done already, or its last step had nothing to predict. on_step and json may be
 * NULL. */
MOE_API moe_status moe_train(const char* options, moe_on_step on_step, void* user, char** json);

#ifdef __cplusplus
}
#endif

#endif
