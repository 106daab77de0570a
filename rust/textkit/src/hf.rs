//! tokenizer.json through Hugging Face's own library, with two additions: a component that is not understood is named, and
//! control tokens can be refused at places of the text.

use ahash::AHashMap;
use serde_json::Value as Json;
use std::str::FromStr;
use tokenizers::normalizer::Range as NormRange;
use tokenizers::{
    DecoderWrapper, Model, ModelWrapper, Normalizer, NormalizedString, NormalizerWrapper, OffsetType,
    PostProcessorWrapper, PreTokenizedString, PreTokenizer, PreTokenizerWrapper, Token,
};

use crate::added::{AddedToken, Matcher};
use crate::error::{failure, shown, Code, Failure, Outcome};
use crate::pieces::Pieces;
use crate::tokenizer::{Control, Kind, Tokenizer};

/// No vocabulary in use is near this; a hostile id must not size a table.
const MAX_VOCAB: u32 = 1 << 22;

pub struct HfTokenizer {
    inner: tokenizers::Tokenizer,
    raw: Matcher,        // tokens searched for before normalization
    normalized: Matcher, // and after it
}

pub fn from_json(text: &str) -> Outcome<Tokenizer> {
    let json: Json = match serde_json::from_str(text) {
        Ok(json) => json,
        Err(e) => return failure(Code::DataLoss, format!("not JSON: {e}")),
    };
    check_components(&json)?;
    let inner = match tokenizers::Tokenizer::from_str(text) {
        Ok(inner) => inner,
        Err(e) => return failure(Code::DataLoss, e.to_string()),
    };
    from_library(inner, json.get("decoder").unwrap_or(&Json::Null))
}

pub fn from_library(mut inner: tokenizers::Tokenizer, decoder: &Json) -> Outcome<Tokenizer> {
    // A server never cuts or pads a prompt on its own account.
    inner.with_truncation(None).map_err(|e| Failure { code: Code::Internal, message: e.to_string() })?;
    inner.with_padding(None);
    let (raw, normalized) = added_tokens(&inner)?;
    let vocab = inner.get_vocab(true);
    let size = match vocab.values().max() {
        None => return failure(Code::DataLoss, "the vocabulary is empty"),
        Some(&max) if max >= MAX_VOCAB => {
            return failure(Code::DataLoss, format!("token id {max} is beyond any vocabulary in use"))
        }
        Some(&max) => max as usize + 1,
    };
    let mut spelling = vec![String::new(); size];
    let mut by_spelling = AHashMap::with_capacity(vocab.len());
    for (token, id) in vocab {
        spelling[id as usize] = token.clone();
        by_spelling.insert(token, id);
    }
    let added = inner.get_added_vocabulary();
    let mut special = vec![0u8; size];
    let mut decoded: Vec<Option<String>> = Vec::with_capacity(size);
    for (id, token) in spelling.iter().enumerate() {
        special[id] = u8::from(added.is_special_token(token));
        let text = added.simple_id_to_token(id as u32).or_else(|| inner.get_model().id_to_token(id as u32));
        decoded.push(text);
    }
    let pieces = Pieces::from_decoder(decoder, &decoded, special)?;
    let kind = Kind::Hf(HfTokenizer { inner, raw, normalized });
    Ok(Tokenizer { kind, pieces, spelling, by_spelling, prefix: None, suffix: None, masker: Default::default() })
}

fn added_tokens(inner: &tokenizers::Tokenizer) -> Outcome<(Matcher, Matcher)> {
    let vocabulary = inner.get_added_vocabulary();
    let (mut raw, mut normalized) = (Vec::new(), Vec::new());
    let mut ids: Vec<_> = vocabulary.get_added_tokens_decoder().iter().collect();
    ids.sort_by_key(|(id, _)| **id);
    for (&id, token) in ids {
        let pattern = if token.normalized { vocabulary.simple_id_to_token(id) } else { None };
        let entry = AddedToken {
            id,
            pattern: pattern.unwrap_or_else(|| token.content.clone()),
            content: token.content.clone(),
            special: token.special,
            single_word: token.single_word,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
        };
        if token.normalized { &mut normalized } else { &mut raw }.push(entry);
    }
    Ok((Matcher::new(raw)?, Matcher::new(normalized)?))
}

impl HfTokenizer {
    pub fn encode(&self, text: &str, add_special_tokens: bool, control: &Control) -> Outcome<Vec<u32>> {
        let encoding = if matches!(control, Control::Everywhere) {
            self.inner.encode_fast(text, add_special_tokens)
        } else {
            self.encode_restricted(text, add_special_tokens, control)
        };
        match encoding {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(e) => failure(Code::Invalid, format!("cannot tokenize: {e}")),
        }
    }

    /// The library's own encode, step by step, with our matcher in place of its added vocabulary.
    fn encode_restricted(
        &self,
        text: &str,
        add_special_tokens: bool,
        control: &Control,
    ) -> tokenizers::Result<tokenizers::Encoding> {
        let mut parts = PreTokenizedString::from(text);
        parts.split(|_, part| split_added(&self.raw, part, control))?;
        let normalizer: Option<&NormalizerWrapper> = self.inner.get_normalizer();
        parts.split(|_, mut part| {
            if let Some(normalizer) = normalizer {
                normalizer.normalize(&mut part)?;
            }
            split_added(&self.normalized, part, control)
        })?;
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut parts)?;
        }
        self.inner.get_model().tokenize_in_pretokenized(&mut parts, None)?;
        let encoding = parts.into_encoding(None, 0, OffsetType::None)?;
        self.inner.post_process(encoding, None, add_special_tokens)
    }
}

type SplitPart = (NormalizedString, Option<Vec<Token>>);

fn split_added(matcher: &Matcher, part: NormalizedString, control: &Control) -> tokenizers::Result<Vec<SplitPart>> {
    let offset = part.offsets_original().0;
    let pieces = matcher.split(part.get(), |token, start, end| {
        let Some(range) = part.convert_offsets(NormRange::Normalized(start..end)) else { return false };
        // Where text decides, only the file's own spelling is a control token, not what normalizes to it.
        if matches!(control, Control::Outside { .. }) && token.special {
            let spelled = part.get_range_original(NormRange::Original(range.clone())).unwrap_or("");
            if spelled.trim() != token.content.trim() {
                return false;
            }
        }
        control.permits(token.id, token.special, offset + range.start, offset + range.end)
    });
    let mut split = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let Some(slice) = part.slice(NormRange::Normalized(piece.start..piece.end)) else {
            return Err("an added token splits a character".into());
        };
        let tokens = piece.token.map(|index| {
            let value = slice.get().to_owned();
            let len = value.len();
            vec![Token::new(matcher.tokens()[index].id, value, (0, len))]
        });
        split.push((slice, tokens));
    }
    Ok(split)
}

/// Names the first component of the file that the library does not know, or does not read whole.
fn check_components(json: &Json) -> Outcome<()> {
    let Some(file) = json.as_object() else {
        return failure(Code::DataLoss, "not a JSON object");
    };
    const KNOWN: [&str; 9] = [
        "version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder",
        "model",
    ];
    if let Some(key) = file.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        return failure(Code::Unsupported, format!("unknown section '{key}'"));
    }
    component::<NormalizerWrapper>(file.get("normalizer"), "normalizer", "normalizers")?;
    component::<PreTokenizerWrapper>(file.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers")?;
    component::<PostProcessorWrapper>(file.get("post_processor"), "post_processor", "processors")?;
    component::<DecoderWrapper>(file.get("decoder"), "decoder", "decoders")?;
    check_model(file.get("model"))
}

fn component<T: serde::de::DeserializeOwned + serde::Serialize>(
    json: Option<&Json>,
    path: &str,
    children: &str,
) -> Outcome<()> {
    let Some(json) = json.filter(|json| !json.is_null()) else { return Ok(()) };
    let kind = json.get("type").and_then(Json::as_str).unwrap_or("(no type)");
    if kind == "Sequence" {
        let Some(list) = json.get(children).and_then(Json::as_array) else {
            return failure(Code::DataLoss, format!("{path}: a Sequence without '{children}'"));
        };
        for (i, child) in list.iter().enumerate() {
            component::<T>(Some(child), &format!("{path}.{children}[{i}]"), children)?;
        }
        return Ok(());
    }
    let parsed: T = match serde_json::from_value(json.clone()) {
        Ok(parsed) => parsed,
        Err(e) => return failure(Code::Unsupported, format!("{path}: component '{kind}' is not understood: {e}")),
    };
    // What the library would write back is what it understood.
    let Ok(understood) = serde_json::to_value(&parsed) else { return Ok(()) };
    match unread_key(json, &understood) {
        None => Ok(()),
        Some(key) => failure(Code::Unsupported, format!("{path}: component '{kind}' has an unknown field '{key}'")),
    }
}

/// Fields that older files carry and that newer ones express otherwise; the library reads them.
const LEGACY_FIELDS: [&str; 3] = ["add_prefix_space", "str_rep", "use_regex"];

fn unread_key<'a>(given: &'a Json, understood: &Json) -> Option<&'a str> {
    let (given, understood) = (given.as_object()?, understood.as_object()?);
    given
        .iter()
        .find(|(key, value)| {
            !understood.contains_key(*key) && !value.is_null() && !LEGACY_FIELDS.contains(&key.as_str())
        })
        .map(|(key, _)| key.as_str())
}

fn check_model(model: Option<&Json>) -> Outcome<()> {
    let Some(model) = model.and_then(Json::as_object) else {
        return failure(Code::DataLoss, "no 'model' section");
    };
    if let Some(kind) = model.get("type").and_then(Json::as_str) {
        if !["BPE", "WordPiece", "WordLevel", "Unigram"].contains(&kind) {
            return failure(Code::Unsupported, format!("model: component '{kind}' is not understood"));
        }
    }
    if model.get("dropout").is_some_and(|d| d.as_f64().is_some_and(|p| p > 0.0)) {
        return failure(Code::Unsupported, "model: dropout would make token ids random");
    }
    const KNOWN: [&str; 13] = [
        "type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
        "ignore_merges", "vocab", "merges", "unk_id", "max_input_chars_per_word", "cache_capacity",
    ];
    match model.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => failure(Code::Unsupported, format!("model: unknown field '{key}'")),
    }
}

/// A byte-level BPE of given vocabulary and merges, as the library would read it from a file.
pub fn bpe_model(vocab: AHashMap<String, u32>, merges: Vec<(String, String)>, ignore_merges: bool) -> Outcome<ModelWrapper> {
    match tokenizers::models::bpe::BPE::builder().vocab_and_merges(vocab, merges).ignore_merges(ignore_merges).build() {
        Ok(bpe) => Ok(ModelWrapper::BPE(bpe)),
        Err(e) => failure(Code::DataLoss, format!("tokenizer.ggml.merges: {}", shown(&e.to_string()))),
    }
}
