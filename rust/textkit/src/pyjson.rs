//! json.dumps and repr as Python writes them, over template values.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

pub struct Style {
    pub ensure_ascii: bool,
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

/// repr(float): shortest digits that read back, fixed between 1e-4 and 1e16, else with a two-digit exponent.
pub fn float_repr(v: f64) -> String {
    if v.is_nan() {
        return "nan".into();
    }
    if v.is_infinite() {
        return if v > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{v:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let fixed = format!("{v}");
        return if fixed.contains('.') { fixed } else { fixed + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

pub fn dumps(value: &Value, style: &Style) -> Result<String, Error> {
    let mut out = String::new();
    write(value, style, 0, &mut out)?;
    Ok(out)
}

fn write(value: &Value, style: &Style, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > 256 {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: nested too deeply"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => number(value, out),
        ValueKind::String => string(value.as_str().unwrap_or(""), style, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            container('[', ']', items.len(), style, depth, out, |i, out| write(&items[i], style, depth + 1, out))?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            container('{', '}', keys.len(), style, depth, out, |i, out| {
                key(&keys[i], style, out)?;
                out.push_str(&style.key_separator);
                write(&value.get_item(&keys[i])?, style, depth + 1, out)
            })?;
        }
        other => {
            let message = format!("tojson: a value of type {other} is not JSON serializable");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    }
    Ok(())
}

fn container(
    open: char,
    close: char,
    len: usize,
    style: &Style,
    depth: usize,
    out: &mut String,
    mut item: impl FnMut(usize, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(open);
    for i in 0..len {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(style, depth + 1, out);
        item(i, out)?;
    }
    if len > 0 {
        new_line(style, depth, out);
    }
    out.push(close);
    Ok(())
}

fn new_line(style: &Style, depth: usize, out: &mut String) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        out.push_str(&indent.repeat(depth));
    }
}

fn number(value: &Value, out: &mut String) {
    if value.is_integer() {
        out.push_str(&value.to_string());
        return;
    }
    match f64::try_from(value.clone()) {
        Ok(v) if v.is_nan() => out.push_str("NaN"),
        Ok(v) if v.is_infinite() => out.push_str(if v > 0.0 { "Infinity" } else { "-Infinity" }),
        Ok(v) => out.push_str(&float_repr(v)),
        Err(_) => out.push_str(&value.to_string()),
    }
}

fn key(key: &Value, style: &Style, out: &mut String) -> Result<(), Error> {
    match key.kind() {
        ValueKind::String => string(key.as_str().unwrap_or(""), style, out),
        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            out.push('"');
            write(key, style, 0, out)?;
            out.push('"');
        }
        _ => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: keys must be str, int, float, bool or None")),
    }
    Ok(())
}

fn string(text: &str, style: &Style, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (style.ensure_ascii && c as u32 > 0x7e) => {
                let mut units = [0u16; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
