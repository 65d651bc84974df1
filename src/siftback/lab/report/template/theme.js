"use strict";
// Before the page is painted: that a script runs, and the colours chosen at the last visit.
document.documentElement.classList.add("js");
try {
  const chosen = localStorage.getItem("siftback-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch {
  // A browser may keep no storage for files; the system's colours it is.
}
