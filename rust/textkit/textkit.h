/* The C face of rust/textkit: Rust's tokenizers, minijinja and llguidance for src/text. Kept by hand; src/ffi.rs and
 * src/grammar_ffi.rs must match it.
 *
 * Every function may be called from any thread; objects are immutable once built. Strings are UTF-8 with a length and need
 * no terminator. A function that returns tk_status leaves its outputs untouched on failure and stores a message in *error
 * (free it with tk_string_free). No Rust panic crosses this border: it becomes TK_INTERNAL. */
#ifndef TAILRACE_TEXTKIT_H
#define TAILRACE_TEXTKIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  TK_OK = 0,
  TK_INVALID = 1,     /* the text or the messages are wrong */
  TK_DATA_LOSS = 2,   /* a file's content is broken */
  TK_UNSUPPORTED = 3, /* well-formed, but not something this build does */
  TK_TOO_LARGE = 4,   /* a bound is exceeded */
  TK_INTERNAL = 5,
  TK_EXHAUSTED = 6    /* try again later */
} tk_status;

typedef struct {
  const char* data;
  size_t len;
} tk_str;

typedef struct {
  char* data;
  size_t len;
} tk_string; /* owned; free with tk_string_free */

typedef struct {
  int32_t* data;
  size_t len;
} tk_ids; /* owned; free with tk_ids_free */

void tk_string_free(tk_string s);
void tk_ids_free(tk_ids ids);

typedef struct tk_tokenizer tk_tokenizer;
typedef struct tk_template tk_template;

tk_status tk_tokenizer_from_json(tk_str json, tk_tokenizer** out, tk_string* error);

typedef struct {
  tk_str model, pre;
  const tk_str* tokens;
  size_t num_tokens;
  const float* scores;  /* NULL or [num_tokens] */
  const int32_t* types; /* NULL or [num_tokens] */
  const tk_str* merges;
  size_t num_merges;
  int32_t bos, eos, unk; /* -1: none */
  int32_t add_bos, add_eos, add_space_prefix;
} tk_gguf_spec;

tk_status tk_tokenizer_from_gguf(const tk_gguf_spec* spec, tk_tokenizer** out, tk_string* error);
void tk_tokenizer_free(tk_tokenizer* tokenizer);

tk_status tk_encode(const tk_tokenizer* tokenizer, tk_str text, int32_t add_special_tokens, int32_t parse_special,
                    tk_ids* out, tk_string* error);

/* Everything that decoding needs, owned by the tokenizer: the bytes of token i are blob[start[i]..start[i + 1]]. */
typedef struct {
  const char* blob;
  const uint32_t* start; /* [size + 1] */
  const uint8_t* special; /* [size] */
  int32_t size;
  tk_str strip;          /* dropped from a text's begin, at most strip_count times; one ASCII character or empty */
  int32_t strip_count;
  int32_t first_drops_meta;
  tk_str join;
} tk_pieces;

void tk_tokenizer_pieces(const tk_tokenizer* tokenizer, tk_pieces* out);
/* The bytes of a token that opens a text, where first_drops_meta is set. */
tk_string tk_first_token_bytes(const tk_tokenizer* tokenizer, int32_t id);
tk_string tk_id_to_token(const tk_tokenizer* tokenizer, int32_t id); /* empty: no such id */
int32_t tk_token_to_id(const tk_tokenizer* tokenizer, tk_str token); /* -1: no such token */

typedef struct {
  tk_str globals; /* JSON object: bos_token, eos_token ... */
  uint64_t max_steps;
  uint64_t max_output_bytes;
} tk_template_options;

tk_status tk_template_new(tk_str source, const tk_template_options* options, tk_template** out, tk_string* error);
void tk_template_free(tk_template* tmpl);

/* The variables that the template reads: a JSON array of their names. */
tk_status tk_template_variables(const tk_template* tmpl, tk_string* out, tk_string* error);

/* input: JSON object {"messages": .., "tools": .., "kwargs": {..}, "add_generation_prompt": bool}; now_s: Unix seconds. */
tk_status tk_template_render(const tk_template* tmpl, tk_str input, int64_t now_s, tk_string* out, tk_string* error);

/* Renders, then encodes without special post-processing; control tokens (special ones and control_ids) count only where
 * the template wrote them. */
tk_status tk_template_render_ids(const tk_template* tmpl, const tk_tokenizer* tokenizer, tk_str input, int64_t now_s,
                                 const int32_t* control_ids, size_t num_control_ids, tk_string* text, tk_ids* ids,
                                 tk_string* error);

typedef struct tk_grammars tk_grammars; /* a vocabulary, prepared for grammars */
typedef struct tk_grammar tk_grammar;   /* compiled, at its begin */
typedef struct tk_run tk_run;           /* along one answer: one thread at a time */

/* control: tokens that grammars name by their ids alone (<[id]>), besides special ones. eos: those that end an answer. */
tk_status tk_grammars_new(const tk_tokenizer* tokenizer, const int32_t* eos, size_t num_eos, const int32_t* control,
                          size_t num_control, tk_grammars** out, tk_string* error);
void tk_grammars_free(tk_grammars* grammars);

typedef enum { TK_LARK = 0, TK_JSON_SCHEMA = 1, TK_REGEX = 2 } tk_grammar_kind;

/* outer: Lark text of the whole answer, which calls the body as @body; empty: the body is the whole answer. body may be
 * empty where outer does not call it. keep: whether the last few that were asked for are to hold it, compiled. Bounded in
 * size, nesting, states and time (TK_TOO_LARGE, TK_INVALID). */
tk_status tk_grammar_compile(const tk_grammars* grammars, tk_str outer, tk_grammar_kind kind, tk_str body, int32_t keep,
                             tk_grammar** out, tk_string* error);
void tk_grammar_free(tk_grammar* grammar);

tk_status tk_grammar_start(const tk_grammar* grammar, tk_run** out, tk_string* error);
void tk_run_free(tk_run* run);
/* The answer goes on by `tokens`; then bit i % 32 of mask[i / 32] is set where token i may come next. Tokens that end
 * an answer are allowed where the grammar accepts. TK_INVALID: the grammar is too complex here, or allows nothing. */
tk_status tk_run_next(tk_run* run, const int32_t* tokens, size_t num_tokens, uint32_t* mask, size_t num_words,
                      tk_string* error);

#ifdef __cplusplus
}
#endif
#endif
