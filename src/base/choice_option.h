// add_choice: a command-line option whose value is one of a few words, for every program's flags alike.
#pragma once

#include <CLI/CLI.hpp>

#include <map>
#include <string>
#include <utility>

#include "base/format.h"

namespace tailrace {

// Adds option `name`, which sets `value` to what `choices` has for the word given. Another word is an error that lists them.
template <typename T>
CLI::Option* add_choice(CLI::App& app, const std::string& name, T& value, std::map<std::string, T> choices,
                        const std::string& help = "") {
  std::string names;
  for (const auto& [key, unused] : choices) names += (names.empty() ? "" : "|") + key;
  const auto set = [&value, choices = std::move(choices), name, names](const std::string& word) {
    const auto at = choices.find(word);
    if (at == choices.end()) throw CLI::ValidationError(name, "must be " + names + ", not " + word);
    value = at->second;
  };
  return app.add_option_function<std::string>(name, set, help)->option_text(names);
}

// The words of --kv-cache-dtype.
inline std::map<std::string, Format> kv_cache_dtypes() {
  return {{"auto", Format::kBF16}, {"bf16", Format::kBF16}, {"fp8", Format::kF8E4M3}};
}

}  // namespace tailrace
