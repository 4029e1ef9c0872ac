// SPDX-License-Identifier: BSD-3-Clause
#include "program.hpp"

#include <cstdlib>
#include <fstream>
#include <random>

namespace replicate::test {
namespace {

std::vector<std::string> joined(std::vector<std::string> words,
                                const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

Program::Program(const std::vector<std::string>& arguments, const ProcessOptions& options)
    : Process(joined({SLUICE_REPLICATE}, arguments), options) {}

HandStarted::HandStarted(const std::string& output, const std::vector<std::string>& more)
    : Program(joined({"replica", "--listen", address() + ":0", "--output", output}, more)) {}

const std::string& HandStarted::at() {
  const std::string before = "listening on ", after = " (";
  if (at_.empty() && says(before) && says("the copy goes to")) {
    const std::string said = err();
    const auto from = said.find(before) + before.size();
    at_ = said.substr(from, said.find(after, from) - from);
  }
  return at_;
}

Ended run(const std::vector<std::string>& arguments, const ProcessOptions& options) {
  return sluice::test::run(joined({SLUICE_REPLICATE}, arguments), options);
}

void write_file(const std::string& path, std::size_t bytes) {
  std::mt19937_64 random(bytes);
  std::string content(bytes, '\0');
  for (char& c : content) c = static_cast<char>(random());
  std::ofstream(path, std::ios::binary) << content;
}

std::string address() {
  const char* const rxe = std::getenv("RXE_ADDR");
  return rxe != nullptr && *rxe != '\0' ? rxe : "127.0.0.1";
}

}  // namespace replicate::test
