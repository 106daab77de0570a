// How C++ speaks to textkit.h: views in, owned results and errors out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/request.h"
#include "base/status.h"
#include "textkit.h"

#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace tailrace {

// Held during a call: Rust's locks are invisible to ThreadSanitizer, so what they guard would look like races.
class TextkitCall {
 public:
#if defined(__SANITIZE_THREAD__)
  TextkitCall() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~TextkitCall() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  TextkitCall() {}
#endif
  TextkitCall(const TextkitCall&) = delete;
};

inline tk_str to_tk(std::string_view text) { return {text.data(), text.size()}; }

inline std::string take(tk_string text) {
  std::string copy(text.data, text.len);
  tk_string_free(text);
  return copy;
}

inline std::vector<TokenId> take(tk_ids ids) {
  std::vector<TokenId> copy(ids.data, ids.data + ids.len);
  tk_ids_free(ids);
  return copy;
}

inline Status to_status(tk_status status, tk_string error) {
  StatusCode code = StatusCode::kInternal;
  switch (status) {
    case TK_OK: return Status();
    case TK_INVALID: code = StatusCode::kInvalidArgument; break;
    case TK_DATA_LOSS: code = StatusCode::kDataLoss; break;
    case TK_UNSUPPORTED: code = StatusCode::kUnsupported; break;
    case TK_TOO_LARGE: code = StatusCode::kTooLarge; break;
    case TK_EXHAUSTED: code = StatusCode::kResourceExhausted; break;
    case TK_INTERNAL: break;
  }
  return Status(code, take(error));
}

}  // namespace tailrace
