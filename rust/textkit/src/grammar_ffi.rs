//! The functions of textkit.h that concern grammars.

use std::sync::Arc;

use crate::error::{failure, Code};
use crate::ffi::{guard, slice, TkStr, TkString};
use crate::grammar::{Grammar, Grammars, Kind, Run};
use crate::tokenizer::Tokenizer;

unsafe fn ids(data: *const i32, len: usize) -> Vec<u32> {
    slice(data, len).iter().map(|&id| id as u32).collect()
}

#[no_mangle]
pub unsafe extern "C" fn tk_grammars_new(
    tokenizer: *const Tokenizer,
    eos: *const i32,
    num_eos: usize,
    control: *const i32,
    num_control: usize,
    out: *mut *mut Arc<Grammars>,
    error: *mut TkString,
) -> i32 {
    guard(error, || {
        let grammars = Grammars::new(&*tokenizer, &ids(eos, num_eos), &ids(control, num_control))?;
        *out = Box::into_raw(Box::new(Arc::new(grammars)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn tk_grammars_free(grammars: *mut Arc<Grammars>) {
    if !grammars.is_null() {
        drop(Box::from_raw(grammars));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tk_grammar_compile(
    grammars: *const Arc<Grammars>,
    outer: TkStr,
    kind: i32,
    body: TkStr,
    keep: i32,
    out: *mut *mut Arc<Grammar>,
    error: *mut TkString,
) -> i32 {
    guard(error, || {
        let kind = match kind {
            0 => Kind::Lark,
            1 => Kind::JsonSchema,
            2 => Kind::Regex,
            _ => return failure(Code::Internal, "no such kind of grammar"),
        };
        let grammar = (*grammars).compile(outer.text("the grammar")?, kind, body.text("the grammar")?, keep != 0)?;
        *out = Box::into_raw(Box::new(grammar));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn tk_grammar_free(grammar: *mut Arc<Grammar>) {
    if !grammar.is_null() {
        drop(Box::from_raw(grammar));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tk_grammar_start(
    grammar: *const Arc<Grammar>,
    out: *mut *mut Run,
    error: *mut TkString,
) -> i32 {
    guard(error, || {
        *out = Box::into_raw(Box::new((*grammar).start()));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn tk_run_free(run: *mut Run) {
    if !run.is_null() {
        drop(Box::from_raw(run));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tk_run_next(
    run: *mut Run,
    tokens: *const i32,
    num_tokens: usize,
    mask: *mut u32,
    num_words: usize,
    error: *mut TkString,
) -> i32 {
    guard(error, || (*run).next(&ids(tokens, num_tokens), std::slice::from_raw_parts_mut(mask, num_words)))
}
