// Runs operations on a group's core, and asks Python for the words of a failure.
#include "link.h"

#include <Python.h>
#include <pthread.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace mx = mlx::core;

namespace standfast_mlx {
namespace {

// How long Python gets for its answer: whoever holds the GIL may be waiting for this very thread.
constexpr std::chrono::seconds kAnswer{2};

PyObject* teller = nullptr;  // set once, before any group; never freed: threads may outlive all

constexpr std::array<const char*, STANDFAST_DTYPES> kDTypes = {
    "bool",   "int8",   "int16",   "int32",    "int64",   "uint8",   "uint16",
    "uint32", "uint64", "float16", "bfloat16", "float32", "float64", "complex64"};

std::string array_text(int dtype, const mx::Shape& shape) {
  std::string text = std::string(kDTypes.at(static_cast<std::size_t>(dtype))) + "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? "," : "") + std::to_string(shape[static_cast<int>(i)]);
  }
  return text + "]";
}

// Links that are no more: Python is told when it asks, since they end in any thread.
struct Ended {
  std::mutex mutex;
  std::vector<long> serials;  // guarded by it

  static Ended& one() {
    static auto* made = new Ended;  // links may outlive everything else
    return *made;
  }
};

// A failure, and Python's words for it. Shared by the thread that waits and the one that asks.
struct Question {
  const standfast_native* table;  // only for the failure's functions, which outlive all groups
  standfast_failure* failure;
  long serial;
  std::string operation;
  std::string array;

  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  bool is_answered = false;
  std::string answer;

  void reply(std::string text) {
    {
      const std::lock_guard lock(mutex);
      answer = std::move(text);
      is_answered = true;
    }
    changed.notify_all();
  }
};

// With the GIL.
std::string ask_python(const Question& question) {
  auto* failure = static_cast<PyObject*>(question.table->as_python(question.failure));
  if (failure == nullptr) {
    PyErr_WriteUnraisable(teller);
    return "";
  }
  PyObject* answer = PyObject_CallFunction(teller, "lNss", question.serial, failure,
                                           question.operation.c_str(), question.array.c_str());
  const char* text = answer != nullptr ? PyUnicode_AsUTF8(answer) : nullptr;
  std::string words = text != nullptr ? text : "";
  if (text == nullptr) PyErr_WriteUnraisable(teller);
  Py_XDECREF(answer);
  return words;
}

// A thread of its own. Python ends a thread that comes for the GIL while the interpreter is being
// taken down, by unwinding it: nothing here may catch that, or be noexcept.
void* answer(void* given) {
  const std::unique_ptr<std::shared_ptr<Question>> box(
      static_cast<std::shared_ptr<Question>*>(given));
  const std::shared_ptr<Question> question = *box;
  if (Py_IsInitialized() == 0 || teller == nullptr) {
    question->reply("");
    return nullptr;
  }
  const PyGILState_STATE gil = PyGILState_Ensure();
  std::string words = ask_python(*question);
  PyGILState_Release(gil);
  question->reply(std::move(words));
  return nullptr;
}

bool start(const std::shared_ptr<Question>& question) {
  auto box = std::make_unique<std::shared_ptr<Question>>(question);
  pthread_t thread;
  if (pthread_create(&thread, nullptr, answer, box.get()) != 0) return false;
  (void)box.release();  // the thread's
  pthread_detach(thread);
  return true;
}

std::string words_of(const std::shared_ptr<Question>& question) {
  if (start(question)) {
    std::unique_lock lock(question->mutex);
    question->changed.wait_for(lock, kAnswer, [&] { return question->is_answered; });
    if (!question->answer.empty()) return question->answer;
  }
  std::array<char, 512> text{};
  question->table->describe(question->failure, text.data(), text.size());
  return "standfast: " + std::string(text.data()) + "; in " + question->operation + " (" +
         question->array + "); Python could not be asked for more";
}

}  // namespace

void learn_teller(void* callable) {
  Py_XINCREF(static_cast<PyObject*>(callable));
  teller = static_cast<PyObject*>(callable);
}

Link::Link(const standfast_native& table, long serial) : table_(table), serial_(serial) {
  if (table.version != STANDFAST_NATIVE_VERSION || table.bytes < sizeof(standfast_native)) {
    throw std::runtime_error("standfast and standfast-mlx are of versions that do not fit");
  }
  table_.group = table.retain(table.group);
}

Link::~Link() {
  table_.release(table_.group);
  Ended& ended = Ended::one();
  const std::lock_guard lock(ended.mutex);
  ended.serials.push_back(serial_);
}

std::vector<long> Link::released() {
  Ended& ended = Ended::one();
  const std::lock_guard lock(ended.mutex);
  return std::exchange(ended.serials, {});
}

void Link::run(const standfast_operation& operation, const char* name,
               const mx::Shape& shape) const {
  standfast_failure* failure = table_.run(table_.group, &operation, nullptr);
  if (failure == nullptr) return;
  // The table's functions live as long as the process, not only as long as this.
  static const standfast_native functions = table_;
  const std::shared_ptr<Question> question(new Question, [](Question* ended) {
    ended->table->forget(ended->failure);
    delete ended;
  });
  question->table = &functions;
  question->failure = failure;
  question->serial = serial_;
  question->operation = name;
  question->array = array_text(operation.dtype, shape);
  throw std::runtime_error(words_of(question));
}

int dtype_code(mx::Dtype dtype) {
  switch (dtype.val()) {
    case mx::Dtype::Val::bool_: return STANDFAST_BOOL;
    case mx::Dtype::Val::int8: return STANDFAST_INT8;
    case mx::Dtype::Val::int16: return STANDFAST_INT16;
    case mx::Dtype::Val::int32: return STANDFAST_INT32;
    case mx::Dtype::Val::int64: return STANDFAST_INT64;
    case mx::Dtype::Val::uint8: return STANDFAST_UINT8;
    case mx::Dtype::Val::uint16: return STANDFAST_UINT16;
    case mx::Dtype::Val::uint32: return STANDFAST_UINT32;
    case mx::Dtype::Val::uint64: return STANDFAST_UINT64;
    case mx::Dtype::Val::float16: return STANDFAST_FLOAT16;
    case mx::Dtype::Val::bfloat16: return STANDFAST_BFLOAT16;
    case mx::Dtype::Val::float32: return STANDFAST_FLOAT32;
    case mx::Dtype::Val::float64: return STANDFAST_FLOAT64;
    case mx::Dtype::Val::complex64: return STANDFAST_COMPLEX64;
  }
  throw std::invalid_argument("a dtype that standfast does not know");
}

}  // namespace standfast_mlx
