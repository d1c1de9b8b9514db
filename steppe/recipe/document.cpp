#include "steppe/recipe/document.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "steppe/base/error.h"

namespace steppe::recipe {
namespace {

// Whether `key` is `root` itself or lies inside it: root.x, root[0].x.
bool lies_in(std::string_view key, std::string_view root) {
  if (key.substr(0, root.size()) != root) return false;
  return key.size() == root.size() || key[root.size()] == '.' || key[root.size()] == '[';
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += {'\\', c};
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (byte < 0x20 || byte == 0x7f)
      out += fmt::format("\\u{:04X}", byte);
    else
      out += c;
  }
  return out + '"';
}

template <class T>
std::string scalar_to_toml(const T& value) {
  if constexpr (std::is_same_v<T, bool>)
    return value ? "true" : "false";
  else if constexpr (std::is_same_v<T, std::string>)
    return quoted(value);
  else if constexpr (std::is_same_v<T, double>) {
    if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
    std::string text = fmt::format("{}", value);
    // fmt writes 1.0 as "1", which would come back as an integer.
    return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
  } else
    return fmt::format("{}", value);
}

// Copies a toml++ tree into flat entries. With `set_origin`, everything was written by that option.
class Flattener {
 public:
  Flattener(std::string_view file, std::string_view set_origin, std::vector<Entry>& entries,
            std::vector<Section>& sections)
      : file_(file), set_origin_(set_origin), entries_(entries), sections_(sections) {}

  void table(const toml::table& table, const std::string& prefix) {
    // toml++ sorts keys by name; the order of the file reads better in messages.
    std::vector<std::pair<std::string, const toml::node*>> children;
    for (const auto& [key, node] : table) children.emplace_back(std::string(key.str()), &node);
    std::stable_sort(children.begin(), children.end(), [](const auto& a, const auto& b) {
      return a.second->source().begin < b.second->source().begin;
    });
    for (const auto& [key, node] : children) this->node(*node, prefix.empty() ? key : prefix + '.' + key);
  }

  void node(const toml::node& node, const std::string& key) {
    if (const toml::table* table = node.as_table()) {
      sections_.push_back({key, origin(node)});
      this->table(*table, key);
    } else if (const toml::array* array = node.as_array()) {
      this->array(*array, key);
    } else {
      Value value;
      std::visit([&value](auto&& scalar) { value = std::move(scalar); }, scalar(node, key));
      entries_.push_back({key, std::move(value), origin(node), std::nullopt});
    }
  }

 private:
  void array(const toml::array& array, const std::string& key) {
    const bool holds_tables = !array.empty() && array.is_homogeneous(toml::node_type::table);
    List list;
    for (std::size_t i = 0; i < array.size(); ++i) {
      if (holds_tables)
        node(*array.get(i), fmt::format("{}[{}]", key, i));
      else
        list.push_back(scalar(*array.get(i), key));
    }
    if (!holds_tables) entries_.push_back({key, std::move(list), origin(array), std::nullopt});
  }

  Scalar scalar(const toml::node& node, const std::string& key) const {
    if (const auto* value = node.as_boolean()) return value->get();
    if (const auto* value = node.as_integer()) return value->get();
    if (const auto* value = node.as_floating_point()) return value->get();
    if (const auto* value = node.as_string()) return value->get();
    throw ValueError(fmt::format("[recipe] {} ({}) must be text, a number, true, false, or a list of those",
                                 key, origin(node)));
  }

  std::string origin(const toml::node& node) const {
    if (!set_origin_.empty()) return std::string(set_origin_);
    return fmt::format("{}:{}", file_, node.source().begin.line);
  }

  std::string_view file_;
  std::string_view set_origin_;
  std::vector<Entry>& entries_;
  std::vector<Section>& sections_;
};

constexpr std::string_view kSetOrigin = "--set";

// The value of an option: TOML where it parses as one value, text as typed otherwise.
void flatten_option(const std::string& key, const std::string& typed, std::vector<Entry>& entries,
                    std::vector<Section>& sections) {
  try {
    const toml::table parsed = toml::parse("value = " + typed);
    const toml::node* value = parsed.get("value");
    const bool is_date = value->is_date() || value->is_time() || value->is_date_time();
    if (parsed.size() == 1 && !is_date) {
      Flattener({}, kSetOrigin, entries, sections).node(*value, key);
      if (!entries.empty() && entries.front().key == key) entries.front().typed = typed;
      return;
    }
  } catch (const toml::parse_error& error) {
    // What opens a list, a table or a quotation was meant as one.
    STEPPE_CHECK_VALUE(typed.find_first_of("[{\"'") != 0, "[recipe] --set {}={}: the value is not TOML: {}",
                       key, typed, error.description());
  }
  entries.push_back({key, typed, std::string(kSetOrigin), typed});
}

bool is_key(std::string_view key) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.[]";
  return !key.empty() && key.find_first_not_of(kLetters) == std::string_view::npos && key.front() != '.' &&
         key.front() != '[' && key.back() != '.' && key.find("..") == std::string_view::npos;
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace

std::string to_toml(const Value& value) {
  if (const List* list = std::get_if<List>(&value)) {
    std::string out = "[";
    for (const Scalar& item : *list) {
      if (out.size() > 1) out += ", ";
      out += std::visit([](const auto& scalar) { return scalar_to_toml(scalar); }, item);
    }
    return out + ']';
  }
  return std::visit(
      [](const auto& scalar) -> std::string {
        if constexpr (std::is_same_v<std::decay_t<decltype(scalar)>, List>)
          return {};  // answered above
        else
          return scalar_to_toml(scalar);
      },
      value);
}

Document Document::parse(std::string_view text, std::string_view name) {
  Document document;
  try {
    const toml::table parsed = toml::parse(text, name);
    Flattener(name, {}, document.entries_, document.sections_).table(parsed, "");
  } catch (const toml::parse_error& error) {
    const auto& at = error.source().begin;
    throw ValueError(
        fmt::format("[recipe] {}:{}:{} is not TOML: {}", name, at.line, at.column, error.description()));
  }
  return document;
}

void Document::set(std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  const std::string key(trimmed(assignment.substr(0, equals)));
  STEPPE_CHECK_VALUE(equals != std::string_view::npos && is_key(key),
                     "[recipe] --set takes KEY=VALUE as in training.steps=100, got \"{}\"", assignment);
  const std::string typed(trimmed(assignment.substr(equals + 1)));
  STEPPE_CHECK_VALUE(!typed.empty(), "[recipe] --set {}= has no value; empty text is written {}='\"\"'", key,
                     key);
  if (const std::size_t open = key.rfind('['); open != std::string::npos) {
    const std::string array = key.substr(0, open);
    const std::size_t close = key.find(']', open);
    STEPPE_CHECK_VALUE(close != std::string::npos && find_section(key.substr(0, close + 1)),
                       "[recipe] --set {}: {} has {} elements, counted from 0", assignment, array,
                       num_elements(array));
  }

  std::vector<Entry> entries;
  std::vector<Section> sections;
  flatten_option(key, typed, entries, sections);
  erase(key);
  entries_.insert(entries_.end(), entries.begin(), entries.end());
  sections_.insert(sections_.end(), sections.begin(), sections.end());
}

const Entry* Document::find(std::string_view key) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [key](const Entry& entry) { return entry.key == key; });
  return found == entries_.end() ? nullptr : &*found;
}

const Section* Document::find_section(std::string_view key) const {
  // A dotted --set makes the sections on its way without a table of their own: none is listed for those, and
  // none is needed, since entries alone are read.
  const auto found = std::find_if(sections_.begin(), sections_.end(),
                                  [key](const Section& section) { return section.key == key; });
  return found == sections_.end() ? nullptr : &*found;
}

std::size_t Document::num_elements(std::string_view key) const {
  std::size_t count = 0;
  while (find_section(fmt::format("{}[{}]", key, count))) ++count;
  return count;
}

void Document::erase(std::string_view key) {
  std::erase_if(entries_, [key](const Entry& entry) { return lies_in(entry.key, key); });
  std::erase_if(sections_, [key](const Section& section) { return lies_in(section.key, key); });
}

}  // namespace steppe::recipe
