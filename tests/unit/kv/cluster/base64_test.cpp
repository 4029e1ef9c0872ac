// SPDX-License-Identifier: BSD-3-Clause
#include "kv/cluster/base64.hpp"

#include <gtest/gtest.h>

#include <string>

namespace {

using namespace sluice::kv;

TEST(Base64, TheExamplesOfItsStandard) {  // RFC 4648, section 10
  const std::pair<const char*, const char*> examples[] = {{"", ""},
                                                          {"f", "Zg=="},
                                                          {"fo", "Zm8="},
                                                          {"foo", "Zm9v"},
                                                          {"foob", "Zm9vYg=="},
                                                          {"fooba", "Zm9vYmE="},
                                                          {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : examples) {
    EXPECT_EQ(base64_encode(bytes), text);
    EXPECT_EQ(base64_decode(text), bytes);
  }
}

TEST(Base64, EveryByteAtEveryPlaceComesBack) {
  for (std::size_t length = 1; length <= 6; ++length)
    for (std::size_t at = 0; at < length; ++at)
      for (int c = 0; c < 256; ++c) {
        std::string bytes(length, '\0');
        bytes[at] = static_cast<char>(c);
        ASSERT_EQ(base64_decode(base64_encode(bytes)), bytes);
      }
}

TEST(Base64, WhatWasNotEncodedIsRefused) {
  for (const char* text : {"Z",         "Zg",    "Zg=",      "Zg===",      "=",
                           "====",      "Zm9v=", " Zm9v",    "Zm9v ",      "Zm\n9",
                           "Zm9vYg=\n", "Zm9-",  "Zm_v",     "Zh==",       "Zm9=",
                           "Z===",      "=Zm9",  "Zg==Zg==", "Zm9v\nZm9v", "\xC3\xA4\xC3\xA4"})
    EXPECT_FALSE(base64_decode(text)) << text;
  EXPECT_FALSE(base64_decode(std::string_view("Zm9\0", 4)));
}

}  // namespace
