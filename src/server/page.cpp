#include "server/page.h"

#include <algorithm>

#include "server/http_answer.h"

namespace tailrace {
namespace {

// Nothing from other hosts, nothing inline; text becomes HTML by the page's sanitizer alone.
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types dompurify";

constexpr char kNoPage[] =
    "tailrace serves models here: the API is at /v1, health at /health, metrics at /metrics.\n"
    "This binary was built without its page (TAILRACE_PAGE=OFF).\n";

bool takes_gzip(std::string_view accept_encoding) {
  const size_t at = accept_encoding.find("gzip");
  if (at == accept_encoding.npos) return false;
  const std::string_view rest = accept_encoding.substr(at + 4, accept_encoding.substr(at + 4).find(','));
  return rest.find("q=0") == rest.npos || rest.find_first_of("123456789") != rest.npos;
}

}  // namespace

bool is_page_path(std::string_view path) { return path == "/" || path.rfind("/assets/", 0) == 0; }

HttpResponse page_answer(std::span<const PageFile> files, const HttpRequest& request) {
  HttpResponse response;
  if (files.empty() && request.path == "/") {
    response.content_type = "text/plain; charset=utf-8";
    response.body = kNoPage;
    return response;
  }
  const auto file = std::find_if(files.begin(), files.end(), [&](const PageFile& f) { return f.path == request.path; });
  if (file == files.end()) {
    return to_response({404, "There is no " + request.path.substr(0, 200) + " here.", "", "not_found"});
  }
  response.content_type = file->content_type;
  const bool gzip = !file->gzip.empty() && takes_gzip(request.accept_encoding);
  response.body = gzip ? file->gzip : file->bytes;
  if (gzip) response.headers.emplace_back("Content-Encoding", "gzip");
  if (!file->gzip.empty()) response.headers.emplace_back("Vary", "Accept-Encoding");
  const bool hashed = request.path != "/";
  response.headers.emplace_back("Cache-Control", hashed ? "public, max-age=31536000, immutable" : "no-cache");
  response.headers.emplace_back("X-Content-Type-Options", "nosniff");
  if (!hashed) {
    response.headers.emplace_back("Content-Security-Policy", kPolicy);
    response.headers.emplace_back("Referrer-Policy", "no-referrer");
  }
  return response;
}

}  // namespace tailrace
