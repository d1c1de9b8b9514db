// The page's template, as CMake embeds it from the folder page/ (embed_page.cmake).
#pragma once

#include <string_view>

namespace steppe::report {

extern const std::string_view kPageHtml;  // with the places {{style}}, {{content}}, {{script}}, in that order
extern const std::string_view kPageStyle;   // page.css
extern const std::string_view kPageScript;  // all scripts, in the order that CMakeLists.txt lists them

}  // namespace steppe::report
