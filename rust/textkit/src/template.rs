//! Chat templates: minijinja set up as Hugging Face sets up Jinja, with bounds on time and size.

use minijinja::machinery::{get_compiled_template, Instruction};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use serde::Deserialize;
use serde_json::Value as Json;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;

use crate::error::{failure, Code, Failure, Outcome};
use crate::pyjson;

const NAME: &str = "chat_template";

pub struct Template {
    env: Environment<'static>,
    globals: BTreeMap<String, Value>,
    max_output_bytes: usize,
}

thread_local! {
    // strftime_now's clock during a render, which stays on one thread.
    static NOW_S: Cell<i64> = const { Cell::new(0) };
}

/// The words of raise_exception, carried inside an engine error.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Raised {}

struct BoundedWriter {
    out: Vec<u8>,
    max: usize,
    full: bool,
}

impl io::Write for BoundedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.out.len() + bytes.len() > self.max {
            self.full = true;
            return Err(io::Error::other("output bound"));
        }
        self.out.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Template {
    pub fn new(source: &str, globals: &str, max_steps: u64, max_output_bytes: u64) -> Outcome<Template> {
        let globals: BTreeMap<String, Json> = match serde_json::from_str(globals) {
            Ok(globals) => globals,
            Err(e) => return failure(Code::Internal, format!("template globals: {e}")),
        };
        let mut env = environment(max_steps)?;
        // Jinja reads every line end as one newline.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        if let Err(e) = env.add_template_owned(NAME, generation_as_with(&source)) {
            return failure(Code::Unsupported, describe(&e));
        }
        check_names(&env)?;
        let globals = globals.iter().map(|(k, v)| Ok((k.clone(), to_value(v)?))).collect::<Outcome<_>>()?;
        Ok(Template { env, globals, max_output_bytes: max_output_bytes as usize })
    }

    /// What it reads and does not set itself before.
    pub fn variables(&self) -> Outcome<Vec<String>> {
        let template = self.env.get_template(NAME).map_err(|e| run_failure(&e))?;
        Ok(template.undeclared_variables(false).into_iter().collect())
    }

    /// `input`: {"messages", "tools", "documents", "kwargs", "add_generation_prompt"}.
    pub fn render(&self, input: &Json, now_s: i64) -> Outcome<String> {
        let mut context = self.globals.clone();
        if let Some(kwargs) = input.get("kwargs").and_then(Json::as_object) {
            for (name, value) in kwargs {
                context.insert(name.clone(), to_value(value)?);
            }
        }
        for name in ["messages", "tools", "add_generation_prompt"] {
            context.insert(name.to_string(), to_value(input.get(name).unwrap_or(&Json::Null))?);
        }
        context.entry("documents".to_string()).or_insert_with(|| Value::from(()));
        let template = self.env.get_template(NAME).map_err(|e| run_failure(&e))?;
        NOW_S.set(now_s);
        let mut writer = BoundedWriter { out: Vec::new(), max: self.max_output_bytes, full: false };
        let result = template.render_captured_to(Value::from(context), &mut writer).map(|_| ());
        if writer.full {
            let bound = self.max_output_bytes;
            return failure(Code::TooLarge, format!("the chat template writes more than {bound} bytes"));
        }
        result.map_err(|e| run_failure(&e))?;
        String::from_utf8(writer.out).map_err(|_| Failure {
            code: Code::Internal,
            message: "the chat template wrote something that is not UTF-8".into(),
        })
    }
}

fn to_value(json: &Json) -> Outcome<Value> {
    Value::deserialize(json).map_err(|e| Failure { code: Code::Invalid, message: format!("messages: {e}") })
}

fn environment(max_steps: u64) -> Outcome<Environment<'static>> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.map_err(|e| Failure { code: Code::Internal, message: e.to_string() })?);
    env.set_fuel(Some(max_steps));
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_formatter(|out, state, value| {
        if value.kind() == ValueKind::Number && !value.is_integer() {
            if let Ok(v) = f64::try_from(value.clone()) {
                return out.write_str(&pyjson::float_repr(v)).map_err(Error::from);
            }
        }
        minijinja::escape_formatter(out, state, value)
    });
    env.add_filter("tojson", tojson);
    // As in Python: none cannot be iterated; strings and mappings are sequences, generators are not.
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    env.add_test("sequence", |value: &Value| {
        use ValueKind::{Bytes, Map, Seq, String, Undefined};
        matches!(value.kind(), Bytes | Map | Seq | String | Undefined)
    });
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
    });
    env.add_function("strftime_now", |format: &str| strftime(format, NOW_S.get()));
    Ok(env)
}

/// tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False), as Hugging Face defines it.
fn tojson(state: &State, value: &Value, args: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if args.len() > names.len() {
        return Err(Error::new(ErrorKind::TooManyArguments, "tojson takes four arguments"));
    }
    let mut given: Vec<Option<Value>> = args.0.into_iter().map(Some).collect();
    given.resize(names.len(), None);
    for (slot, name) in given.iter_mut().zip(names) {
        if named.has(name) {
            *slot = Some(named.get(name)?);
        }
    }
    named.assert_all_used()?;
    let given: Vec<Option<Value>> = given.into_iter().map(|v| v.filter(|v| !v.is_none())).collect();
    let indent = match &given[1] {
        None => None,
        Some(v) if v.kind() == ValueKind::String => v.as_str().map(str::to_string),
        Some(v) => Some(" ".repeat(i64::try_from(v.clone())?.clamp(0, 64) as usize)),
    };
    let comma = if indent.is_some() { "," } else { ", " };
    let (mut item_separator, mut key_separator) = (comma.to_string(), ": ".to_string());
    if let Some(pair) = &given[2] {
        item_separator = pair.get_item_by_index(0)?.to_string();
        key_separator = pair.get_item_by_index(1)?.to_string();
    }
    let style = pyjson::Style {
        ensure_ascii: given[0].as_ref().is_some_and(Value::is_true),
        indent,
        item_separator,
        key_separator,
        sort_keys: given[3].as_ref().is_some_and(Value::is_true),
    };
    let text = pyjson::dumps(value, &style)?;
    state.consume_fuel(text.len() as u64 / 16)?;
    Ok(Value::from(text))
}

/// The C library's strftime in local time, as Python's datetime.now().strftime uses it.
fn strftime(format: &str, now_s: i64) -> Result<String, Error> {
    let bad = || Error::new(ErrorKind::InvalidOperation, "strftime_now: the format is not usable");
    if format.is_empty() {
        return Ok(String::new());
    }
    // The trailing mark tells an empty result from a buffer that is too small.
    let format = std::ffi::CString::new(format!("{format}|")).map_err(|_| bad())?;
    let mut buffer = vec![0u8; format.as_bytes().len() * 8 + 256];
    let time = now_s as libc::time_t;
    let written = unsafe {
        let mut parts: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&time, &mut parts).is_null() {
            return Err(bad());
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &parts)
    };
    buffer.truncate(written.saturating_sub(1));
    if written == 0 {
        return Err(bad());
    }
    String::from_utf8(buffer).map_err(|_| bad())
}

/// Filters and tests are looked up when they run; a template that names unknown ones must fail when it is loaded.
fn check_names(env: &Environment<'static>) -> Outcome<()> {
    let template = env.get_template(NAME).map_err(|e| run_failure(&e))?;
    let code = &get_compiled_template(&template).instructions;
    let mut state = env.empty_state();
    let mut at = 0;
    while let Some(instruction) = code.get(at) {
        let unknown = match instruction {
            Instruction::ApplyFilter(name, ..) => state
                .apply_filter(name, &[])
                .is_err_and(|e| e.kind() == ErrorKind::UnknownFilter)
                .then(|| format!("unknown filter '{name}'")),
            Instruction::PerformTest(name, ..) => state
                .perform_test(name, &[])
                .is_err_and(|e| e.kind() == ErrorKind::UnknownTest)
                .then(|| format!("unknown test '{name}'")),
            _ => None,
        };
        if let Some(what) = unknown {
            return failure(Code::Unsupported, format!("line {}: {what}", code.get_line(at).unwrap_or(0)));
        }
        at += 1;
    }
    Ok(())
}

fn describe(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_string);
    match error.line() {
        Some(line) => format!("line {line}: {detail}{}", construct(error)),
        None => detail,
    }
}

/// The piece of source that an error points at.
fn construct(error: &Error) -> String {
    let found = error.template_source().zip(error.range()).and_then(|(source, range)| source.get(range));
    found.filter(|text| !text.is_empty()).map_or(String::new(), |text| {
        let text: String = text.chars().take(60).collect();
        format!(" at '{text}'")
    })
}

fn run_failure(error: &Error) -> Failure {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
    while let Some(inner) = cause {
        if let Some(raised) = inner.downcast_ref::<Raised>() {
            return Failure { code: Code::Invalid, message: raised.0.clone() };
        }
        if let Some(inner) = inner.downcast_ref::<Error>() {
            if inner.kind() == ErrorKind::OutOfFuel {
                return run_failure(inner);
            }
        }
        cause = inner.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return Failure { code: Code::TooLarge, message: "the chat template takes too many steps on this input".into() };
    }
    Failure { code: Code::Invalid, message: format!("the chat template fails on this input: {}", describe(error)) }
}

/// `{% generation %}` marks assistant text for training; here it is a scope and nothing else.
fn generation_as_with(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let close = match tag.as_bytes().get(1) {
            Some(b'%') => "%}",
            Some(b'{') => "}}",
            Some(b'#') => "#}",
            _ => {
                out.push('{');
                rest = &tag[1..];
                continue;
            }
        };
        let mut end = tag_end(tag, close);
        let inner = tag.get(2..end.saturating_sub(2)).unwrap_or("");
        let word = inner.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        match word {
            "generation" if close == "%}" => out.push_str(&tag[..end].replace("generation", "with")),
            "endgeneration" if close == "%}" => out.push_str(&tag[..end].replace("endgeneration", "endwith")),
            _ => {
                if word == "raw" && close == "%}" {
                    end = raw_end(tag, end);
                }
                out.push_str(&tag[..end]);
            }
        }
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}

/// Index just after the tag's end; the whole rest when it has none.
fn tag_end(tag: &str, close: &str) -> usize {
    let bytes = tag.as_bytes();
    let mut quote: Option<u8> = None;
    let mut i = 2;
    while i < bytes.len() {
        match quote {
            Some(_) if bytes[i] == b'\\' => i += 1,
            Some(q) if bytes[i] == q => quote = None,
            Some(_) => {}
            None if close != "#}" && (bytes[i] == b'"' || bytes[i] == b'\'') => quote = Some(bytes[i]),
            None if bytes[i..].starts_with(close.as_bytes()) => return i + 2,
            None => {}
        }
        i += 1;
    }
    tag.len()
}

fn raw_end(tag: &str, from: usize) -> usize {
    tag[from..].find("endraw").map_or(tag.len(), |at| from + at)
}
