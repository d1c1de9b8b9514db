// For tests: an action must throw `Error`, with a message that holds every one of the parts.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace steppe::recipe {

template <class Error, class Action>
void expect_message(const Action& action, std::initializer_list<std::string> parts) {
  try {
    action();
  } catch (const Error& error) {
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "\"" << part << "\" is missing in: " << error.what();
    return;
  }
  ADD_FAILURE() << "nothing was thrown; expected a message with " << *parts.begin();
}

}  // namespace steppe::recipe
