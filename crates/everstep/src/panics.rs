//! What a panic said, and where: for panics of user code, which are failures and not ours.

use std::{any::Any, cell::RefCell, sync::Once};

thread_local! {
    /// Where the last panic of this thread happened.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes the place of every panic from now on; the hook that was there still runs.
pub(crate) fn install_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let place = info.location().map(ToString::to_string);
            PLACE.with(|slot| {
                if let Ok(mut slot) = slot.try_borrow_mut() {
                    *slot = place;
                }
            });
            before(info);
        }));
    });
}

/// The message of a panic that was just caught on this thread, and its place if it is known.
pub(crate) fn describe(panic: &(dyn Any + Send)) -> String {
    let message = message(panic);
    match PLACE.with(|slot| slot.borrow_mut().take()) {
        Some(place) => format!("panicked at {place}: {message}"),
        None => format!("panicked: {message}"),
    }
}

pub(crate) fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
