#include "server/user_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/read_whole_file.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using fs::perms;

constexpr perms kOwners = perms::owner_read | perms::owner_write;

struct UserFiles : testing::Test {
  UserFiles() : folder(fs::path(testing::TempDir()) / ("user_file_" + std::to_string(::getpid()))) {
    fs::create_directory(folder);
  }
  ~UserFiles() override { fs::remove_all(folder); }
  static std::string read(const fs::path& path) { return read_whole_file(path, 1 << 20).value(); }
  static perms mode(const fs::path& path) { return fs::status(path).permissions(); }
  size_t count() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  }
  fs::path make(const char* name, const std::string& text, perms permissions = kOwners) const {
    std::ofstream(folder / name) << text;
    fs::permissions(folder / name, permissions);
    return folder / name;
  }
  static Expected<Replacement> replace(const fs::path& path, const std::string& text, bool holds_key = false) {
    const auto file = look_at_user_file(path);
    return file ? replace_user_file(*file, text, holds_key) : fail(file.error());
  }
  const fs::path folder;
};

TEST_F(UserFiles, a_new_file_is_the_users_alone) {
  const fs::path path = folder / "a" / "b.json";
  EXPECT_FALSE(look_at_user_file(path)->exists);
  EXPECT_EQ(replace(path, "x\n")->copy, "");
  EXPECT_EQ(read(path), "x\n");
  EXPECT_EQ(mode(path), kOwners);
}

TEST_F(UserFiles, what_was_there_is_kept_every_time) {
  const fs::path path = make("c", "one", kOwners | perms::group_read);
  EXPECT_EQ(replace(path, "two")->copy, path.string() + ".bak");
  EXPECT_EQ(replace(path, "three")->copy, path.string() + ".bak2");
  EXPECT_EQ(read(path.string() + ".bak") + read(path.string() + ".bak2") + read(path), "onetwothree");
  EXPECT_EQ(mode(path), kOwners | perms::group_read);
  EXPECT_EQ(count(), 3u);
}

TEST_F(UserFiles, a_key_is_kept_from_others) {
  const fs::path path = make("c", "one", kOwners | perms::group_read | perms::others_read);
  EXPECT_TRUE(replace(path, "key", true)->tightened);
  EXPECT_EQ(mode(path), kOwners);
  EXPECT_EQ(mode(path.string() + ".bak"), kOwners);
  EXPECT_FALSE(replace(path, "key2", true)->tightened);
  EXPECT_FALSE(replace(folder / "new", "key", true)->tightened);
  EXPECT_EQ(mode(folder / "new"), kOwners);
}

TEST_F(UserFiles, a_link_stays_one) {
  make("real", "one");
  fs::create_symlink("real", folder / "link");
  EXPECT_EQ(replace(folder / "link", "two")->copy, (fs::canonical(folder) / "real.bak").string());
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read(folder / "real"), "two");
}

TEST_F(UserFiles, links_to_nothing_and_loops_are_refused) {
  fs::create_symlink("nothing", folder / "dangling");
  fs::create_symlink("loop", folder / "loop");
  EXPECT_FALSE(look_at_user_file(folder / "dangling").has_value());
  EXPECT_FALSE(look_at_user_file(folder / "loop").has_value());
  EXPECT_FALSE(look_at_user_file(folder).has_value());
}

TEST_F(UserFiles, a_file_that_changed_meanwhile_is_left) {
  const auto there = look_at_user_file(make("c", "one"));
  make("c", "other");
  EXPECT_FALSE(replace_user_file(*there, "two", false).has_value());
  EXPECT_EQ(read(folder / "c"), "other");
  const auto absent = look_at_user_file(folder / "d");
  make("d", "new");
  EXPECT_FALSE(replace_user_file(*absent, "two", false).has_value());
  EXPECT_EQ(read(folder / "d"), "new");
  EXPECT_EQ(count(), 2u);
}

TEST_F(UserFiles, without_room_all_is_left_as_it_was) {
  const fs::path path = make("c", std::string(100, 'x'));
  const auto there = look_at_user_file(path);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t room : {rlim_t{50}, rlim_t{10}}) {  // for the new text but not for the copy; for neither
    const rlimit tight{room, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
    const auto done = replace_user_file(*there, std::string(30, 'y'), false);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_FALSE(done.has_value());
    EXPECT_EQ(read(path), std::string(100, 'x'));
    EXPECT_EQ(count(), 1u);
  }
  std::signal(SIGXFSZ, handler);
}

}  // namespace
}  // namespace tailrace
