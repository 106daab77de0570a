//! Text libraries behind the C header textkit.h.

mod added;
mod error;
mod ffi;
mod gbnf;
mod gguf;
mod grammar;
mod grammar_ffi;
mod hf;
mod pieces;
mod provenance;
mod pyjson;
mod spm;
mod template;
mod tokenizer;
