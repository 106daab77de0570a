//! Which bytes of a rendered prompt came from the request, as far as control tokens are concerned.
//!
//! The template is rendered again with every stretch of request text that could be (part of) a control token's spelling
//! replaced by inert text of equal length. Where the two renders differ, the text came from the request, and no control
//! token may touch it. Three maskings, from the certain to the strict:
//!  - exact: whole spellings, and halves at a string's begin or end. Where a template acts on such text (it searches for
//!    "</think>"), the renders differ in length: then each message is masked by itself, and all that changes is request text.
//!  - edges: every first and last character of a spelling, wherever it stands (case changes, cut and joined text).
//!  - middles: strings that stand inside a spelling ("im_end", joined by the template to a whole one).
//! The last two count only if the template takes no notice of them, since ordinary text may look like that.

use ahash::{AHashMap, AHashSet};
use aho_corasick::AhoCorasick;
use serde_json::Value as Json;
use std::ops::Range;

use crate::error::{failure, Code, Outcome};
use crate::template::Template;

/// More messages than this with control text that the template acts on are masked together.
const MAX_UNITS: usize = 32;

pub struct Masker {
    spellings: AhoCorasick,
    prefixes: AHashSet<Vec<u8>>, // proper ones
    suffixes: AHashSet<Vec<u8>>,
    longest: usize,
    edges: AHashSet<char>,
    joined: String,           // all spellings, NUL between
    inert: [Option<char>; 5], // by UTF-8 length
    inert_bytes: [bool; 256],
}

type Mask<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Masker {
    pub fn new(spellings: &[&str]) -> Outcome<Masker> {
        let automaton = match AhoCorasick::new(spellings) {
            Ok(automaton) => automaton,
            Err(e) => return failure(Code::Internal, format!("control tokens: {e}")),
        };
        let (mut prefixes, mut suffixes, mut edges) = (AHashSet::new(), AHashSet::new(), AHashSet::new());
        let mut longest = 0;
        for text in spellings {
            longest = longest.max(text.len());
            for (at, _) in text.char_indices().skip(1) {
                prefixes.insert(text.as_bytes()[..at].to_vec());
                suffixes.insert(text.as_bytes()[at..].to_vec());
            }
            edges.extend(text.chars().next().into_iter().chain(text.chars().next_back()).filter(|c| !c.is_alphanumeric()));
        }
        let used: AHashSet<char> = spellings.iter().flat_map(|s| s.chars()).collect();
        let mut inert = [None; 5];
        for c in "~^`@%*+=&$!;?#0123456789QXZqxzµ¤¦§¶※‡…‰𝄞😐".chars().filter(|c| !used.contains(c)) {
            inert[c.len_utf8()].get_or_insert(c);
        }
        let mut inert_bytes = [false; 256];
        for c in inert.iter().flatten() {
            c.encode_utf8(&mut [0u8; 4]).bytes().for_each(|b| inert_bytes[b as usize] = true);
        }
        let joined = spellings.join("\0");
        Ok(Masker { spellings: automaton, prefixes, suffixes, longest, edges, joined, inert, inert_bytes })
    }

    fn blank(&self, text: &str, marked: impl Fn(usize, char) -> bool) -> Option<String> {
        let mut changed = false;
        let mut out = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            let inert = self.inert[c.len_utf8()].filter(|_| marked(at, c));
            changed |= inert.is_some();
            out.push(inert.unwrap_or(c));
        }
        changed.then_some(out)
    }

    fn exact(&self, text: &str) -> Option<String> {
        let mut marks: Vec<Range<usize>> =
            self.spellings.find_overlapping_iter(text).map(|m| m.start()..m.end()).collect();
        let start = text.len() - text.trim_start().len();
        let end = text.trim_end().len();
        if start < end {
            let trimmed = &text.as_bytes()[start..end];
            let most = self.longest.min(trimmed.len());
            if let Some(k) = (1..=most).rev().find(|&k| self.prefixes.contains(&trimmed[trimmed.len() - k..])) {
                marks.push(end - k..end);
            }
            if let Some(k) = (1..=most).rev().find(|&k| self.suffixes.contains(&trimmed[..k])) {
                marks.push(start..start + k);
            }
        }
        if marks.is_empty() {
            return None;
        }
        let marks = union(marks);
        self.blank(text, |at, c| !c.is_whitespace() && touches(&marks, at))
    }

    fn at_edges(&self, text: &str) -> Option<String> {
        self.blank(text, |_, c| self.edges.contains(&c))
    }

    fn middles(&self, text: &str) -> Option<String> {
        let inner = text.trim();
        if inner.is_empty() || inner.len() >= self.longest || inner.contains('\0') || !self.joined.contains(inner) {
            return None;
        }
        self.blank(text, |_, c| !c.is_whitespace())
    }

    /// The byte ranges of `base` where it differs from `masked`, if they line up.
    fn differences(&self, base: &str, masked: &str) -> Option<Vec<Range<usize>>> {
        if base.len() != masked.len() {
            return None;
        }
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for (at, (a, b)) in base.bytes().zip(masked.bytes()).enumerate() {
            if a == b {
                continue;
            }
            if !self.inert_bytes[b as usize] {
                return None;
            }
            match ranges.last_mut() {
                Some(last) if last.end == at => last.end = at + 1,
                _ => ranges.push(at..at + 1),
            }
        }
        Some(ranges)
    }
}

fn touches(ranges: &[Range<usize>], at: usize) -> bool {
    let first = ranges.partition_point(|r| r.end <= at);
    ranges.get(first).is_some_and(|r| r.start <= at)
}

fn union(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|r| r.start);
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Renders `input`; also gives the byte ranges of the text that no control token may touch.
pub fn render(template: &Template, masker: &Masker, input: &Json, now_s: i64) -> Outcome<(String, Vec<Range<usize>>)> {
    let base = template.render(input, now_s)?;
    if !masker.spellings.is_match(&base) {
        return Ok((base, Vec::new()));
    }
    let mut tainted = exact_taint(template, masker, input, now_s, &base)?;
    let edges = |text: &str| masker.at_edges(text);
    let middles = |text: &str| masker.middles(text);
    for mask in [&edges as Mask, &middles as Mask] {
        if let Some(masked) = masked_input(input, None, mask) {
            if let Ok(other) = template.render(&masked, now_s) {
                tainted.extend(masker.differences(&base, &other).unwrap_or_default());
            }
        }
    }
    Ok((base, union(tainted)))
}

fn exact_taint(
    template: &Template,
    masker: &Masker,
    input: &Json,
    now_s: i64,
    base: &str,
) -> Outcome<Vec<Range<usize>>> {
    let exact = |text: &str| masker.exact(text);
    let Some(masked) = masked_input(input, None, &exact) else { return Ok(Vec::new()) };
    if let Ok(other) = template.render(&masked, now_s) {
        if let Some(ranges) = masker.differences(base, &other) {
            return Ok(ranges);
        }
    }
    let count = input.get("messages").and_then(Json::as_array).map_or(0, Vec::len);
    let marked = |i: usize| masked["messages"][i] != input["messages"][i];
    let mut units: Vec<Unit> = (0..count).filter(|&i| marked(i)).map(|i| Unit::Messages(i..i + 1)).collect();
    if units.len() > MAX_UNITS {
        units = vec![Unit::Messages(0..count)];
    }
    units.push(Unit::Others);
    let mut tainted = Vec::new();
    for unit in &units {
        let Some(masked) = masked_input(input, Some(unit), &exact) else { continue };
        let other = match template.render(&masked, now_s) {
            Ok(other) => other,
            Err(_) => return failure(Code::Invalid, "a message holds control-token text that the chat template acts on"),
        };
        match masker.differences(base, &other) {
            Some(ranges) => tainted.extend(ranges),
            None => tainted.push(changed_region(base.as_bytes(), other.as_bytes())),
        }
    }
    Ok(tainted)
}

/// What remains of `base` without the bytes that both begin with and both end with.
fn changed_region(base: &[u8], other: &[u8]) -> Range<usize> {
    let shorter = base.len().min(other.len());
    let head = base.iter().zip(other).take_while(|(a, b)| a == b).count();
    let tail = base.iter().rev().zip(other.iter().rev()).take(shorter - head).take_while(|(a, b)| a == b).count();
    head..base.len() - tail
}

/// A part of the input that is masked by itself.
enum Unit {
    Messages(Range<usize>),
    Others, // tools and kwargs
}

/// The input with `mask` applied to its strings (all, or one unit's); None when that changes nothing.
fn masked_input(input: &Json, unit: Option<&Unit>, mask: Mask) -> Option<Json> {
    let mut out = input.clone();
    let mut changed = false;
    if let Some(messages) = out.get_mut("messages").and_then(Json::as_array_mut) {
        for (i, message) in messages.iter_mut().enumerate() {
            if unit.is_none_or(|unit| matches!(unit, Unit::Messages(range) if range.contains(&i))) {
                changed |= mask_strings(message, mask);
            }
        }
    }
    if unit.is_none_or(|unit| matches!(unit, Unit::Others)) {
        for name in ["tools", "kwargs"] {
            if let Some(part) = out.get_mut(name) {
                changed |= mask_strings(part, mask);
            }
        }
    }
    changed.then_some(out)
}

/// Words of the protocol that templates compare and may write inside a control token ("<|user|>"): the server accepts no
/// others for these keys.
fn is_protocol_word(key: &str, value: &str) -> bool {
    match key {
        "role" => ["system", "developer", "user", "assistant", "tool", "function"].contains(&value),
        "type" => ["text", "function", "object", "string", "number", "integer", "boolean", "array", "null"].contains(&value),
        _ => false,
    }
}

fn mask_strings(json: &mut Json, mask: Mask) -> bool {
    match json {
        Json::String(text) => match mask(text) {
            Some(masked) => {
                *text = masked;
                true
            }
            None => false,
        },
        Json::Array(items) => items.iter_mut().fold(false, |changed, item| mask_strings(item, mask) | changed),
        Json::Object(fields) => {
            let mut changed = false;
            for (key, value) in fields.iter_mut() {
                if !value.as_str().is_some_and(|text| is_protocol_word(key, text)) {
                    changed |= mask_strings(value, mask);
                }
            }
            let renamed: AHashMap<String, String> =
                fields.keys().filter_map(|key| mask(key).map(|masked| (key.clone(), masked))).collect();
            if !renamed.is_empty() {
                let old = std::mem::take(fields);
                fields.extend(old.into_iter().map(|(key, value)| (renamed.get(&key).cloned().unwrap_or(key), value)));
                changed = true;
            }
            changed
        }
        _ => false,
    }
}
