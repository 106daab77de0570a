//! Text libraries behind the C header textkit.h. A grammar module (llguidance) will stand beside these.

mod added;
mod error;
mod ffi;
mod gguf;
mod hf;
mod pieces;
mod provenance;
mod pyjson;
mod spm;
mod template;
mod tokenizer;
