// A configuration file of the user's that this program changes: how it stands, and its replacement.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/status.h"

namespace tailrace {

struct UserFile {
  std::string path;  // as it is called
  std::string real;  // links followed
  std::string text;  // "" where there is no file
  bool exists = false;
  mode_t mode = 0;
  uid_t owner = 0;
  gid_t group = 0;
};

struct Replacement {
  std::string copy;        // where what was there is kept; "" where nothing was
  bool tightened = false;  // others could read the file, and cannot any more
};

// kInvalidArgument: a link to nothing, a loop of links, anything that cannot be read.
Expected<UserFile> look_at_user_file(const std::string& path);

// Puts `text` in the file's place at once and whole, under its owner and permissions; a new file is
// the user's alone, and so is one that `holds_key`. What was there is kept beside it, FILE.bak or
// FILE.bak2 ... kInvalidArgument, with all left as it was: no room, no right, or a file that is not
// what it was when it was looked at.
Expected<Replacement> replace_user_file(const UserFile& file, std::string_view text, bool holds_key);

}  // namespace tailrace
