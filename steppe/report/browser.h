// The memory chart of a page as a PNG, drawn by a headless Chromium: the same code draws it as in the page.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace steppe::report {

struct PictureOptions {
  std::optional<std::string> browser;  // a program; nothing: the first of Chromium's usual names in PATH
  bool dark = false;
  bool only_changes = false;       // without what never changes during the step
  int width = 1200, height = 640;  // of the page; the picture has twice as many pixels each way
};

// Throws RuntimeFailure where no browser is found, saying what to install, or where it fails or takes more
// than two minutes.
void write_picture(const std::string& page, const std::filesystem::path& png, const PictureOptions& options);

}  // namespace steppe::report
