// The page at /: which paths are its files, and how they are served. What the files hold is made at build time (web/).
#pragma once

#include <span>
#include <string_view>

#include "server/http_exchange.h"

namespace tailrace {

struct PageFile {
  std::string_view path;          // "/" or "/assets/NAME", the name with a hash of its contents
  std::string_view content_type;
  std::string_view bytes;
  std::string_view gzip;          // the same compressed; "" where that is not smaller
};

// "/" and all below /assets/.
bool is_page_path(std::string_view path);

// 404 for what is not among `files`; of no files at all, "/" is a text that says so.
HttpResponse page_answer(std::span<const PageFile> files, const HttpRequest& request);

}  // namespace tailrace
