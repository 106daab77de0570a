// The page that this binary carries; made from web/ at build time.
#pragma once

#include <span>

#include "server/page.h"

namespace tailrace {

// Empty when it was built with TAILRACE_PAGE=OFF.
std::span<const PageFile> page_files();

}  // namespace tailrace
