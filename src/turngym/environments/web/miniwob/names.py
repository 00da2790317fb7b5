"""The tasks of MiniWoB++ 1.1: all but ``hover-shape``, whose page never pays."""

from __future__ import annotations

TASKS: tuple[str, ...] = (
    "ascending-numbers", "bisect-angle", "book-flight", "book-flight-nodelay", "button-delay",
    "buy-ticket", "chase-circle", "choose-date", "choose-date-easy", "choose-date-medium",
    "choose-date-nodelay", "choose-list", "circle-center", "click-button", "click-button-sequence",
    "click-checkboxes", "click-checkboxes-large", "click-checkboxes-soft",
    "click-checkboxes-transfer", "click-collapsible", "click-collapsible-2",
    "click-collapsible-2-nodelay", "click-collapsible-nodelay", "click-color", "click-dialog",
    "click-dialog-2", "click-link", "click-menu", "click-menu-2", "click-option", "click-pie",
    "click-pie-nodelay", "click-scroll-list", "click-shades", "click-shape", "click-tab",
    "click-tab-2", "click-tab-2-easy", "click-tab-2-hard", "click-tab-2-medium", "click-test",
    "click-test-2", "click-test-transfer", "click-widget", "copy-paste", "copy-paste-2",
    "count-shape", "count-sides", "daily-calendar", "drag-box", "drag-circle", "drag-cube",
    "drag-items", "drag-items-grid", "drag-shapes", "drag-shapes-2", "drag-single-shape",
    "drag-sort-numbers", "draw-circle", "draw-line", "email-inbox", "email-inbox-delete",
    "email-inbox-forward", "email-inbox-forward-nl", "email-inbox-forward-nl-turk",
    "email-inbox-important", "email-inbox-nl-turk", "email-inbox-noscroll", "email-inbox-reply",
    "email-inbox-star-reply", "enter-date", "enter-password", "enter-text", "enter-text-2",
    "enter-text-dynamic", "enter-time", "find-greatest", "find-midpoint", "find-word", "flight.AA",
    "flight.Alaska", "flight.Alaska-auto", "focus-text", "focus-text-2", "form-sequence",
    "form-sequence-2", "form-sequence-3", "generate-number", "grid-coordinate", "guess-number",
    "highlight-text", "highlight-text-2", "hot-cold", "identify-shape",
    "login-user", "login-user-popup", "moving-items", "multi-layouts", "multi-orderings",
    "navigate-tree", "number-checkboxes", "odd-or-even", "order-food", "phone-book", "read-table",
    "read-table-2", "resize-textarea", "right-angle", "scroll-text", "scroll-text-2",
    "search-engine", "sign-agreement", "simon-says", "simple-algebra", "simple-arithmetic",
    "social-media", "social-media-all", "social-media-some", "stock-market", "terminal",
    "text-editor", "text-transform", "tic-tac-toe", "unicode-test", "use-autocomplete",
    "use-autocomplete-nodelay", "use-colorwheel", "use-colorwheel-2", "use-slider", "use-slider-2",
    "use-spinner", "visual-addition",
)  # fmt: skip

MAX_TURNS = 15
LONG = {
    "book-flight": 25, "book-flight-nodelay": 25, "chase-circle": 120, "choose-date": 25,
    "choose-date-nodelay": 25, "click-checkboxes-large": 20, "drag-cube": 40,
    "drag-shapes-2": 20, "flight.AA": 40, "flight.Alaska": 40, "flight.Alaska-auto": 40,
    "form-sequence": 50, "generate-number": 40, "guess-number": 24, "hot-cold": 25,
    "moving-items": 130, "number-checkboxes": 40, "sign-agreement": 40, "simon-says": 60,
    "social-media-all": 20, "stock-market": 100, "text-editor": 70, "use-slider": 120,
    "use-slider-2": 70, "use-spinner": 30,
}  # fmt: skip
"""Turn limits of tasks that take longer."""

TURN_MS = dict.fromkeys(("chase-circle", "moving-items", "simon-says", "stock-market"), 100)
"""How long an action takes in tasks about time; in others it lasts until the page is quiet."""

FULL_MARKS = {
    "bisect-angle": 0.99, "circle-center": 0.97, "find-midpoint": 0.97, "moving-items": 0.99,
    "right-angle": 0.99,
}  # fmt: skip
"""Raw reward from which a task scores 1 that pays by the distance: a click lands on a whole pixel,
which may be half of one away."""

HIDDEN: dict[str, tuple[int, ...]] = {
    "guess-number": (10,), "hot-cold": (150, 115), "simon-says": (3, 4),
    "tic-tac-toe": (100, 100, 9),
}  # fmt: skip
"""Pages that do not show their problem: among how many values each random number chooses."""

WRONG = {
    "flight.AA": (
        "55febab899", "c5d8f30b29", "aca53d5e15", "9aebf9b3bf", "bc55a06477", "81b47ce9c8",
    ),
    "flight.Alaska": (
        "cf1a080120", "83246db3c6", "4ed5544d4e", "692d7cae3d", "514f008d1c", "8c96e6e713",
        "5076e07e4f", "b809bf758e", "4842e53a1f", "37e71fa1cf",
    ),
}  # fmt: skip
"""Problems that are left out: they expect another city, airport or day than their goal says."""
