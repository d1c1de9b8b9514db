#include "steppe/memory/scope.h"

#include <utility>

namespace steppe::memory {
namespace {

thread_local Category thread_category = Category::kUntagged;
thread_local Ledger* thread_ledger = nullptr;

}  // namespace

Scope::Scope(Category category) : previous_(std::exchange(thread_category, category)) {}
Scope::~Scope() {
  thread_category = previous_;
}

Category current_category() {
  return thread_category;
}

LedgerBinding::LedgerBinding(Ledger& ledger) : previous_(std::exchange(thread_ledger, &ledger)) {}
LedgerBinding::~LedgerBinding() {
  thread_ledger = previous_;
}

Ledger& current_ledger() {
  return thread_ledger != nullptr ? *thread_ledger : process_ledger();
}

// Never destroyed: static tensors of libraries are released after main.
Ledger& process_ledger() {
  static Ledger* const ledger = new Ledger;
  return *ledger;
}

}  // namespace steppe::memory
