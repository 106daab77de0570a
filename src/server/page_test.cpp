#include "server/page.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tailrace {
namespace {

constexpr PageFile kFiles[] = {{"/", "text/html; charset=utf-8", "<!doctype html>", ""},
                               {"/assets/a-12.js", "text/javascript", "aaaaaaaaaa", "gz"}};

std::string header(const HttpResponse& response, const std::string& name) {
  const auto found = std::find_if(response.headers.begin(), response.headers.end(),
                                  [&](const auto& header) { return header.first == name; });
  return found == response.headers.end() ? "" : found->second;
}

HttpResponse get(const char* path, const char* accept_encoding = "") {
  HttpRequest request;
  request.path = path;
  request.accept_encoding = accept_encoding;
  return page_answer(kFiles, request);
}

TEST(Page, the_document_is_asked_for_again_and_its_assets_are_kept) {
  const HttpResponse document = get("/");
  EXPECT_EQ(document.status, 200);
  EXPECT_EQ(document.content_type, "text/html; charset=utf-8");
  EXPECT_EQ(header(document, "Cache-Control"), "no-cache");
  const HttpResponse asset = get("/assets/a-12.js");
  EXPECT_EQ(asset.body, "aaaaaaaaaa");
  EXPECT_EQ(header(asset, "Cache-Control"), "public, max-age=31536000, immutable");
  EXPECT_EQ(header(asset, "X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(get("/assets/b.js").status, 404);
}

TEST(Page, the_document_forbids_other_hosts_and_inline_code) {
  const std::string policy = header(get("/"), "Content-Security-Policy");
  EXPECT_NE(policy.find("default-src 'none'"), std::string::npos);
  EXPECT_NE(policy.find("script-src 'self';"), std::string::npos);
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  EXPECT_EQ(policy.find("http"), std::string::npos);
}

TEST(Page, compressed_for_those_who_take_it) {
  for (const char* taken : {"gzip", "br, gzip", "deflate,gzip;q=0.5", "gzip;q=1.0, *;q=0"}) {
    const HttpResponse asset = get("/assets/a-12.js", taken);
    EXPECT_EQ(asset.body, "gz") << taken;
    EXPECT_EQ(header(asset, "Content-Encoding"), "gzip") << taken;
  }
  for (const char* not_taken : {"", "br", "gzip;q=0", "gzip;q=0.0"}) {
    const HttpResponse asset = get("/assets/a-12.js", not_taken);
    EXPECT_EQ(asset.body, "aaaaaaaaaa") << not_taken;
    EXPECT_EQ(header(asset, "Content-Encoding"), "") << not_taken;
    EXPECT_EQ(header(asset, "Vary"), "Accept-Encoding");
  }
}

TEST(Page, a_binary_without_it_says_so) {
  HttpRequest request;
  request.path = "/";
  const HttpResponse response = page_answer({}, request);
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.content_type, "text/plain; charset=utf-8");
  EXPECT_NE(response.body.find("TAILRACE_PAGE=OFF"), std::string::npos);
  request.path = "/assets/a.js";
  EXPECT_EQ(page_answer({}, request).status, 404);
}

}  // namespace
}  // namespace tailrace
