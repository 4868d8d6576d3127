//! Enums whose variants are listed once, with the numbers by which they are stored and their words.

/// Defines such an enum, and `ALL`, its variants in order. Variants with numbers have `code` and
/// `from_code`; variants with words have `as_str` and `Display`.
macro_rules! listed {
    (
        $(#[$about:meta])*
        pub enum $name:ident {
            $($(#[$item:meta])* $variant:ident $(= $code:literal)? $(as $word:literal)?,)+
        }
    ) => {
        $(#[$about])*
        pub enum $name {
            $($(#[$item])* $variant $(= $code)?,)+
        }

        impl $name {
            /// All of them, in order.
            pub const ALL: [$name; [$(stringify!($variant)),+].len()] = [$($name::$variant),+];
        }

        listed!(@codes $name $($($variant $code)?)+);
        listed!(@words $name $($($variant $word)?)+);
    };
    (@codes $name:ident) => {};
    (@codes $name:ident $($variant:ident $code:literal)+) => {
        impl $name {
            /// The number by which it is stored.
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The one that is stored as `code`.
            pub const fn from_code(code: u8) -> Option<$name> {
                match code {
                    $($code => Some($name::$variant),)+
                    _ => None,
                }
            }
        }
    };
    (@words $name:ident) => {};
    (@words $name:ident $($variant:ident $word:literal)+) => {
        impl $name {
            /// The word for it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
