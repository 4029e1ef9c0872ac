// SPDX-License-Identifier: BSD-3-Clause
// Reads arbitrary text as a configuration, with variables and a flag laid over it. Nothing may
// crash; and what was taken must come back the same from the TOML that to_toml() makes of it.
//
// The input: lines that begin with '%' are NAME=VALUE of a variable (SLUICE_ is put in front),
// those with '@' are PATH=VALUE of a flag; all others are the file.
// Run it with -dict=tests/fuzz/config_input/config.dict on a copy of
// tests/fuzz/config_input/corpus.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "sluice/topology/config.hpp"

namespace {

using namespace sluice::topology;

void require(bool condition, const char* what, const std::string& detail) {
  if (condition) return;
  std::fprintf(stderr, "%s:\n%s\n", what, detail.c_str());
  std::abort();
}

ConfigInput input_of(std::string_view bytes) {
  ConfigInput input;
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    const std::size_t equals = line.find('=');
    const bool overlay = !line.empty() && (line.front() == '%' || line.front() == '@');
    if (!overlay || equals == std::string_view::npos) {
      input.text.append(line).push_back('\n');
      continue;
    }
    const std::string name(line.substr(1, equals - 1));
    const std::string value(line.substr(equals + 1));
    if (line.front() == '%')
      input.environment.emplace_back("SLUICE_" + name, value);
    else
      input.overrides.push_back({name, value, "--set"});
  }
  return input;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ConfigInput input = input_of({reinterpret_cast<const char*>(data), size});
  const ConfigOutcome outcome = Config::read(input);
  (void)outcome.to_string();
  if (!outcome.ok()) return 0;
  for (const bool with_origins : {false, true}) {
    ConfigInput again;
    again.text = outcome.config.to_toml(with_origins);
    const ConfigOutcome reread = Config::read(again);
    require(reread.ok(), "to_toml() does not read", reread.to_string() + again.text);
    require(reread.config.values() == outcome.config.values(), "to_toml() means something else",
            again.text);
    require(diff(outcome.config, reread.config).empty(), "equal values differ", again.text);
  }
  return 0;
}
