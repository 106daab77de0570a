//! The functions of textkit.h. Each runs under catch_unwind, so that no panic reaches C++.

use serde_json::Value as Json;
use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

use crate::error::{failure, Code, Failure, Outcome};
use crate::gguf;
use crate::hf;
use crate::provenance;
use crate::template::Template;
use crate::tokenizer::{Control, Tokenizer};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct TkStr {
    data: *const u8,
    len: usize,
}

#[repr(C)]
pub struct TkString {
    data: *mut u8,
    len: usize,
}

#[repr(C)]
pub struct TkIds {
    data: *mut i32,
    len: usize,
}

impl TkStr {
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 { &[] } else { std::slice::from_raw_parts(self.data, self.len) }
    }
    pub unsafe fn text<'a>(self, what: &str) -> Outcome<&'a str> {
        std::str::from_utf8(self.bytes())
            .map_err(|_| Failure { code: Code::Invalid, message: format!("{what} is not valid UTF-8") })
    }
    fn of(text: &str) -> TkStr {
        TkStr { data: text.as_ptr(), len: text.len() }
    }
}

pub unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if len == 0 || data.is_null() { &[] } else { std::slice::from_raw_parts(data, len) }
}

fn owned(bytes: Vec<u8>) -> TkString {
    let boxed = bytes.into_boxed_slice();
    let len = boxed.len();
    TkString { data: Box::into_raw(boxed).cast(), len }
}

fn owned_ids(ids: Vec<u32>) -> TkIds {
    let boxed: Box<[i32]> = ids.into_iter().map(|id| id as i32).collect();
    let len = boxed.len();
    TkIds { data: Box::into_raw(boxed).cast(), len }
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body`; a failure or panic becomes a status and a message.
pub unsafe fn guard(error: *mut TkString, body: impl FnOnce() -> Outcome<()>) -> i32 {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        // A caught panic is reported by its status; the library's own print would only confuse.
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !GUARDED.get() {
                previous(info);
            }
        }));
    });
    GUARDED.set(true);
    let result = catch_unwind(AssertUnwindSafe(body));
    GUARDED.set(false);
    let failure = match result {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(payload) => {
            let text = payload
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string()))
                .unwrap_or_default();
            Failure { code: Code::Internal, message: format!("text library: {text}") }
        }
    };
    *error = owned(failure.message.into_bytes());
    failure.code as i32
}

#[no_mangle]
pub unsafe extern "C" fn tk_string_free(s: TkString) {
    if !s.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(s.data, s.len)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tk_ids_free(ids: TkIds) {
    if !ids.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(ids.data, ids.len)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tk_tokenizer_from_json(json: TkStr, out: *mut *mut Tokenizer, error: *mut TkString) -> i32 {
    guard(error, || {
        *out = Box::into_raw(Box::new(hf::from_json(json.text("the file")?)?));
        Ok(())
    })
}

#[repr(C)]
pub struct TkGgufSpec {
    model: TkStr,
    pre: TkStr,
    tokens: *const TkStr,
    num_tokens: usize,
    scores: *const f32,
    types: *const i32,
    merges: *const TkStr,
    num_merges: usize,
    bos: i32,
    eos: i32,
    unk: i32,
    add_bos: i32,
    add_eos: i32,
    add_space_prefix: i32,
}

unsafe fn texts<'a>(data: *const TkStr, len: usize, what: &str) -> Outcome<Vec<&'a str>> {
    let items = slice(data, len).iter().enumerate();
    items.map(|(i, item)| item.text(&format!("{what} {i}"))).collect()
}

#[no_mangle]
pub unsafe extern "C" fn tk_tokenizer_from_gguf(
    spec: *const TkGgufSpec,
    out: *mut *mut Tokenizer,
    error: *mut TkString,
) -> i32 {
    guard(error, || {
        let spec = &*spec;
        let n = spec.num_tokens;
        let id = |v: i32| u32::try_from(v).ok();
        let types = if spec.types.is_null() { vec![1; n] } else { slice(spec.types, n).to_vec() };
        let built = gguf::build(gguf::Spec {
            model: spec.model.text("the tokenizer model")?,
            pre: spec.pre.text("the pre-tokenizer name")?,
            tokens: texts(spec.tokens, n, "token")?,
            scores: slice(spec.scores, if spec.scores.is_null() { 0 } else { n }),
            types,
            merges: texts(spec.merges, spec.num_merges, "merge")?,
            bos: id(spec.bos),
            eos: id(spec.eos),
            unk: id(spec.unk),
            add_bos: spec.add_bos != 0,
            add_eos: spec.add_eos != 0,
            add_space_prefix: spec.add_space_prefix != 0,
        })?;
        *out = Box::into_raw(Box::new(built));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn tk_tokenizer_free(tokenizer: *mut Tokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tk_encode(
    tokenizer: *const Tokenizer,
    text: TkStr,
    add_special_tokens: i32,
    parse_special: i32,
    out: *mut TkIds,
    error: *mut TkString,
) -> i32 {
    guard(error, || {
        let control = if parse_special != 0 { Control::Everywhere } else { Control::Nowhere };
        let ids = (*tokenizer).encode(text.text("the text")?, add_special_tokens != 0, &control)?;
        *out = owned_ids(ids);
        Ok(())
    })
}

#[repr(C)]
pub struct TkPieces {
    blob: *const u8,
    start: *const u32,
    special: *const u8,
    size: i32,
    strip: TkStr,
    strip_count: i32,
    first_drops_meta: i32,
    join: TkStr,
}

#[no_mangle]
pub unsafe extern "C" fn tk_tokenizer_pieces(tokenizer: *const Tokenizer, out: *mut TkPieces) {
    let pieces = &(*tokenizer).pieces;
    *out = TkPieces {
        blob: pieces.blob.as_ptr(),
        start: pieces.start.as_ptr(),
        special: pieces.special.as_ptr(),
        size: pieces.len() as i32,
        strip: TkStr::of(&pieces.strip),
        strip_count: pieces.strip_count,
        first_drops_meta: i32::from(pieces.first_drops.is_some()),
        join: TkStr::of(&pieces.join),
    };
}

unsafe fn spelling<'a>(tokenizer: *const Tokenizer, id: i32) -> &'a str {
    let spelling = &(*tokenizer).spelling;
    usize::try_from(id).ok().and_then(|id| spelling.get(id)).map_or("", String::as_str)
}

#[no_mangle]
pub unsafe extern "C" fn tk_first_token_bytes(tokenizer: *const Tokenizer, id: i32) -> TkString {
    let drops = (*tokenizer).pieces.first_drops;
    let text: String = spelling(tokenizer, id).chars().filter(|&c| Some(c) != drops).collect();
    owned(text.into_bytes())
}

#[no_mangle]
pub unsafe extern "C" fn tk_id_to_token(tokenizer: *const Tokenizer, id: i32) -> TkString {
    owned(spelling(tokenizer, id).as_bytes().to_vec())
}

#[no_mangle]
pub unsafe extern "C" fn tk_token_to_id(tokenizer: *const Tokenizer, token: TkStr) -> i32 {
    let found = std::str::from_utf8(token.bytes()).ok().and_then(|t| (*tokenizer).by_spelling.get(t).copied());
    found.map_or(-1, |id| id as i32)
}

#[repr(C)]
pub struct TkTemplateOptions {
    globals: TkStr,
    max_steps: u64,
    max_output_bytes: u64,
}

#[no_mangle]
pub unsafe extern "C" fn tk_template_new(
    source: TkStr,
    options: *const TkTemplateOptions,
    out: *mut *mut Template,
    error: *mut TkString,
) -> i32 {
    guard(error, || {
        let options = &*options;
        let globals = options.globals.text("the template's globals")?;
        let source = source.text("the chat template")?;
        let template = Template::new(source, globals, options.max_steps, options.max_output_bytes)?;
        *out = Box::into_raw(Box::new(template));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn tk_template_free(template: *mut Template) {
    if !template.is_null() {
        drop(Box::from_raw(template));
    }
}

#[no_mangle]
pub unsafe extern "C" fn tk_template_variables(
    template: *const Template,
    out: *mut TkString,
    error: *mut TkString,
) -> i32 {
    guard(error, || {
        *out = owned(Json::from((*template).variables()?).to_string().into_bytes());
        Ok(())
    })
}

unsafe fn parse_input(input: TkStr) -> Outcome<Json> {
    match serde_json::from_slice(input.bytes()) {
        Ok(json) => Ok(json),
        Err(e) => failure(Code::Invalid, format!("messages: {e}")),
    }
}

#[no_mangle]
pub unsafe extern "C" fn tk_template_render(
    template: *const Template,
    input: TkStr,
    now_s: i64,
    out: *mut TkString,
    error: *mut TkString,
) -> i32 {
    guard(error, || {
        *out = owned((*template).render(&parse_input(input)?, now_s)?.into_bytes());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn tk_template_render_ids(
    template: *const Template,
    tokenizer: *const Tokenizer,
    input: TkStr,
    now_s: i64,
    control_ids: *const i32,
    num_control_ids: usize,
    text: *mut TkString,
    ids: *mut TkIds,
    error: *mut TkString,
) -> i32 {
    guard(error, || {
        let extra: Vec<u32> = slice(control_ids, num_control_ids).iter().map(|&id| id as u32).collect();
        let masker = (*tokenizer).masker(&extra)?;
        let (prompt, tainted) = provenance::render(&*template, &masker, &parse_input(input)?, now_s)?;
        let control =
            if tainted.is_empty() { Control::Everywhere } else { Control::Outside { tainted: &tainted, extra: &extra } };
        let prompt_ids = (*tokenizer).encode(&prompt, false, &control)?;
        *text = owned(prompt.into_bytes());
        *ids = owned_ids(prompt_ids);
        Ok(())
    })
}
