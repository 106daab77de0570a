#include "server/api_keys.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <thread>

namespace tailrace {
namespace {

std::unique_ptr<ApiKeys> keys_of(std::vector<std::string> keys) {
  HttpOptions options;
  options.api_keys = std::move(keys);
  return std::move(ApiKeys::load(options).value());
}

TEST(ApiKeys, none_are_required_where_none_are_given) {
  const auto keys = keys_of({});
  EXPECT_FALSE(keys->required());
  EXPECT_EQ(keys->find("", ""), nullptr);
}

TEST(ApiKeys, only_the_exact_key) {
  const auto keys = keys_of({"other", "key"});
  EXPECT_TRUE(keys->required());
  ASSERT_NE(keys->find("Bearer key", ""), nullptr);
  EXPECT_EQ(keys->find("Bearer key", "")->name, "key-2");
  EXPECT_NE(keys->find("bearer other", ""), nullptr);  // RFC 9110: a scheme's case says nothing
  for (const char* header : {"", "Bearer", "Bearer ", "Bearer ke", "Bearer keys", "Bearer keykey",
                             "Bearer KEY", "Bearerkey", "key", "Basic key"}) {
    EXPECT_EQ(keys->find(header, ""), nullptr) << header;
  }
}

TEST(ApiKeys, the_header_x_api_key_counts_where_there_is_no_authorization) {
  const auto keys = keys_of({"key"});
  EXPECT_NE(keys->find("", "key"), nullptr);
  EXPECT_EQ(keys->find("", "Bearer key"), nullptr);
  EXPECT_EQ(keys->find("Bearer wrong", "key"), nullptr);
}

TEST(ApiKeys, lines_of_a_file) {
  const auto keys =
      parse_key_file("# clients\n\n  alice:a:b\tmax_running=3\r\nplain\n", "f").value();
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].name, "alice");
  EXPECT_EQ(keys[0].secret, "a:b");
  EXPECT_EQ(keys[0].max_running, 3);
  EXPECT_EQ(keys[1].name, "line-4");
  EXPECT_EQ(keys[1].secret, "plain");
  EXPECT_EQ(keys[1].max_running, 0);
}

TEST(ApiKeys, faults_of_a_file_name_the_line_and_not_the_key) {
  for (const char* text : {"a:secret\n:secret2", "x\na:", "x\ny max=3", "x\ny max_running=0",
                           "x\ny max_running=1x", "a:x\na:y", "a:secret\nb:secret", "x\n\xff:secret"}) {
    const auto keys = parse_key_file(text, "f");
    ASSERT_FALSE(keys) << text;
    EXPECT_NE(keys.error().message().find("--api-key-file f, line 2"), std::string::npos)
        << keys.error().message();
    EXPECT_EQ(keys.error().message().find("secret"), std::string::npos) << keys.error().message();
  }
  EXPECT_FALSE(parse_key_file("# nothing\n", "f"));
}

TEST(ApiKeys, a_reload_keeps_what_a_key_owns_and_a_broken_file_changes_nothing) {
  HttpOptions options;
  options.api_key_file = testing::TempDir() + "/tailrace_api_keys_" + std::to_string(getpid());
  options.max_running_per_key = 2;
  const auto write = [&](const char* text) { std::ofstream(options.api_key_file) << text; };
  EXPECT_FALSE(ApiKeys::load(options));  // no such file
  HttpOptions folder = options;
  folder.api_key_file = testing::TempDir();
  EXPECT_FALSE(ApiKeys::load(folder));
  HttpOptions pipe;  // nobody writes to it: opening it would not return
  pipe.api_key_file = options.api_key_file + "_pipe";
  ASSERT_EQ(::mkfifo(pipe.api_key_file.c_str(), 0600), 0);
  for (const std::string& path : {pipe.api_key_file, std::string("/dev/zero")}) {
    pipe.api_key_file = path;
    const auto none = ApiKeys::load(pipe);
    ASSERT_FALSE(none);
    EXPECT_NE(none.error().message().find(path + " is no regular file"), std::string::npos) << none.error().message();
  }
  std::remove((options.api_key_file + "_pipe").c_str());
  write("alice:a\nbob:b\n");
  const auto keys = std::move(ApiKeys::load(options).value());
  const auto before = keys->find("Bearer a", "");
  write("carol:c\nalice:a max_running=5\n");
  EXPECT_TRUE(keys->reload().ok());
  const auto after = keys->find("Bearer a", "");
  EXPECT_EQ(before->max_running, 2);
  EXPECT_EQ(after->max_running, 5);
  EXPECT_EQ(before->use, after->use);
  EXPECT_EQ(keys->find("Bearer b", ""), nullptr);
  write("alice:a\nalice:b\n");
  EXPECT_FALSE(keys->reload().ok());
  EXPECT_NE(keys->find("Bearer c", ""), nullptr);
  std::remove(options.api_key_file.c_str());
}

TEST(ApiKeys, what_a_key_owns_stays_with_its_name_and_without_one_with_its_secret) {
  HttpOptions options;
  options.api_key_file = testing::TempDir() + "/tailrace_api_keys_names_" + std::to_string(getpid());
  const auto write = [&](const char* text) { std::ofstream(options.api_key_file) << text; };
  write("alice:a\nbob:b\nplain\nother\n");
  const auto keys = std::move(ApiKeys::load(options).value());
  const auto use = [&](const std::string& secret) {
    const auto key = keys->find("Bearer " + secret, "");
    return key ? key->use : nullptr;
  };
  const auto alice = use("a"), bob = use("b"), plain = use("plain"), other = use("other");
  write("alice:a2\nbob:b\nrotated\nplain\n");  // lines change their places
  ASSERT_TRUE(keys->reload().ok());
  EXPECT_EQ(use("a2"), alice);
  EXPECT_EQ(use("a"), nullptr);
  EXPECT_EQ(use("b"), bob);
  EXPECT_EQ(use("plain"), plain);
  EXPECT_NE(use("rotated"), plain);
  EXPECT_NE(use("rotated"), other);
  write("bob:a2\nalice:b\nnamed:plain\nline-4:x\n");  // two change secrets, one gets a name
  ASSERT_TRUE(keys->reload().ok());
  EXPECT_EQ(use("a2"), bob);
  EXPECT_EQ(use("b"), alice);
  EXPECT_EQ(use("plain"), plain);
  write("carol:b\nalice:a3\n");  // carol has alice's old secret, and nothing of hers
  ASSERT_TRUE(keys->reload().ok());
  EXPECT_EQ(use("a3"), alice);
  EXPECT_NE(use("b"), alice);
  const auto carol = use("b");
  write("alice:a3\nCarol:b\n");  // renamed
  ASSERT_TRUE(keys->reload().ok());
  EXPECT_EQ(use("b"), carol);
  std::remove(options.api_key_file.c_str());
}

TEST(ApiKeys, a_refused_share_takes_no_room_from_others_meanwhile) {
  HttpOptions options;
  options.api_keys = {"a"};
  options.max_running_per_key = 3;
  const auto keys = std::move(ApiKeys::load(options).value());
  const auto key = keys->find("Bearer a", "");
  const auto held = take_share(key, 2, "n");
  ASSERT_TRUE(held);
  std::atomic<bool> over{false};
  std::thread refused([&] {
    while (!over) EXPECT_FALSE(take_share(key, 2, "n"));
  });
  int taken = 0;
  for (int i = 0; i < 100'000; ++i) taken += take_share(key, 1, "n") ? 1 : 0;
  over = true;
  refused.join();
  EXPECT_EQ(taken, 100'000);
  EXPECT_FALSE(share_refusal(key, 1, "n"));
  EXPECT_EQ(share_refusal(key, 2, "n")->http_status, 429);
  EXPECT_EQ(share_refusal(key, 4, "n")->http_status, 400);
  EXPECT_FALSE(share_refusal(nullptr, 4, "n"));
}

TEST(ApiKeys, shares_come_back_and_others_keys_have_their_own) {
  HttpOptions options;
  options.api_keys = {"a", "b"};
  options.max_running_per_key = 2;
  const auto keys = std::move(ApiKeys::load(options).value());
  const auto a = keys->find("Bearer a", ""), b = keys->find("Bearer b", "");
  {
    const auto both = take_share(a, 2, "n");
    ASSERT_TRUE(both);
    const auto more = take_share(a, 1, "n");
    ASSERT_FALSE(more);
    EXPECT_EQ(more.error().http_status, 429);
    EXPECT_TRUE(take_share(b, 2, "n"));
  }
  EXPECT_TRUE(take_share(a, 2, "n"));
  const auto never = take_share(a, 3, "n");
  ASSERT_FALSE(never);
  EXPECT_EQ(never.error().http_status, 400);
  EXPECT_EQ(never.error().param, "n");
  EXPECT_TRUE(take_share(nullptr, 1000, "n"));
}

}  // namespace
}  // namespace tailrace
